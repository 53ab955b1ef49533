"""A run's detections on its validation images, and COCO's figures about them."""
import contextlib
import io
import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np
from mmengine.config import Config

from mmrla.datasets.checks import read_annotations
from mmrla.datasets.errors import DataError

from .runs import Run, innermost

# COCO's twelve figures in the order of its summary.
FIGURES = ('AP', 'AP50', 'AP75', 'AP small', 'AP medium', 'AP large',
           'AR 1', 'AR 10', 'AR 100', 'AR small', 'AR medium', 'AR large')
KINDS = dict(bbox='boxes', segm='masks')


class Truth(NamedTuple):
    """The validation set of a run.

    Attributes:
        path: The annotation file.
        images: The folder of the images.
        coco: The annotations as pycocotools' class.
        classes: Names of the classes, by label.
        category_ids: The annotation file's ids of these classes, by label.
    """
    path: Path
    images: Path
    coco: Any
    classes: Tuple[str, ...]
    category_ids: Tuple[int, ...]


class Evaluation(NamedTuple):
    """COCO's figures of one run.

    Attributes:
        figures: By kind (bbox, segm), the twelve figures; -1 where there is no object.
        per_class: By kind, AP by label; nan where a class has no object.
        precision: By kind, shape (3, 101, classes): precision by recall at IoU 0.5, at 0.75
            and on average; -1 where a class has no object.
    """
    figures: Dict[str, List[float]]
    per_class: Dict[str, np.ndarray]
    precision: Dict[str, np.ndarray]


def coco_classes() -> Tuple[type, type]:
    """faster-coco-eval's ``COCO`` and evaluator if it is installed, else pycocotools'."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
        return COCO, COCOeval_faster
    except ImportError:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
        return COCO, COCOeval


def find_path(path: str, run: Run) -> Optional[Path]:
    """A path of a config, relative to here or to a folder above the run."""
    for base in (Path(), *run.folder.resolve().parents):
        if (base / path).is_file() or (base / path).is_dir():
            return base / path
    return None


def read_truth(run: Run) -> Optional[Truth]:
    """The annotations that a run was validated on; None if it has none or they are gone."""
    loader = run.config.get('val_dataloader') or run.config.get('test_dataloader') or {}
    dataset = innermost(loader.get('dataset'))
    if not str(dataset.get('ann_file', '')).endswith('.json'):
        return None
    root = dataset.get('data_root') or ''
    prefix = dataset.get('data_prefix') or {}
    folder = prefix.get('img', '') if isinstance(prefix, dict) else prefix
    path = find_path(str(Path(root) / dataset['ann_file']), run)
    if path is None:
        return None
    images = find_path(str(Path(root) / folder), run) or path.parent
    read_annotations(path)  # names the file if its content is wrong
    with contextlib.redirect_stdout(io.StringIO()):
        coco = coco_classes()[0](str(path))
    classes = class_names(run.config, coco)
    by_name = {category['name']: category['id'] for category in coco.dataset['categories']}
    missing = [name for name in classes if name not in by_name]
    if missing:
        raise DataError(f'annotations {path} have no category {missing[0]!r}, which the config '
                        f'of {run.folder} names')
    return Truth(path, images, coco, classes, tuple(by_name[name] for name in classes))


def class_names(config: Config, coco: Any) -> Tuple[str, ...]:
    """The classes of a config's validation data, in the order of its labels."""
    dataset = innermost((config.get('val_dataloader') or {}).get('dataset'))
    classes = (dataset.get('metainfo') or {}).get('classes')
    if classes:
        return (classes, ) if isinstance(classes, str) else tuple(classes)
    return tuple(category['name'] for category in
                 sorted(coco.dataset['categories'], key=lambda category: category['id']))


def predictions_file(run: Run) -> Path:
    """Where the detections of a run's checkpoint are kept."""
    stem = run.checkpoint.stem if run.checkpoint else 'predictions'
    return run.folder / 'predictions' / f'{stem}.json'


def has_predictions(run: Run) -> bool:
    """Whether detections are kept that are newer than the checkpoint."""
    path = predictions_file(run)
    return path.is_file() and not (
        run.checkpoint and run.checkpoint.stat().st_mtime > path.stat().st_mtime)


def read_predictions(run: Run) -> Optional[List[dict]]:
    """The kept detections; None if there are none, or if the checkpoint is newer."""
    if not has_predictions(run):
        return None
    path = predictions_file(run)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f'detections {path} cannot be read as JSON ({error}); remove the file, '
                        'and they are made again') from error
    return content['annotations'] if isinstance(content, dict) else content


def evaluate(truth: Truth, found: List[dict]) -> Evaluation:
    """COCO's figures, as ``mmrla test`` computes them."""
    figures, per_class, precision = {}, {}, {}
    for kind in KINDS:
        if kind == 'segm' and not _has_masks(truth, found):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            evaluator = _run(truth, found, kind)
        figures[kind] = [float(value) for value in np.asarray(evaluator.stats)[:12]]
        # IoU, recall, class, area, limit of detections -> the first three
        values = evaluator.eval['precision'][..., 0, -1]
        precision[kind] = np.stack([values[0], values[5], values.mean(0)])
        per_class[kind] = np.array(
            [column[column > -1].mean() if (column > -1).any() else np.nan
             for column in np.moveaxis(values, -1, 0)])
    return Evaluation(figures, per_class, precision)


def _has_masks(truth: Truth, found: List[dict]) -> bool:
    has_truth = any(annotation.get('segmentation') for annotation in
                    truth.coco.dataset['annotations'][:100])
    return has_truth and bool(found) and 'segmentation' in found[0]


def _run(truth: Truth, found: Iterable[dict], kind: str) -> Any:
    """Run pycocotools' algorithm."""
    keys = ('image_id', 'category_id', 'score') + (
        ('bbox', ) if kind == 'bbox' else ('segmentation', ))
    results = [{key: item[key] for key in keys} for item in found]
    if not results:  # loadRes refuses an empty list
        first = truth.coco.dataset['images'][0]['id']
        results = [dict(image_id=first, category_id=truth.category_ids[0], score=0.0,
                        bbox=[0, 0, 0, 0])]
    evaluator = coco_classes()[1](truth.coco, truth.coco.loadRes(results), kind)
    evaluator.params.catIds = list(truth.category_ids)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator
