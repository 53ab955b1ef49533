"""Checks of a run before its first step: seconds now instead of an error after hours.

:func:`check_run` compares the classes, paths and numbers of a config with the files that it
names. Every problem is an error of mmrla whose message names the setting and the fix.
"""
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import cv2
import torch
from mmengine.config import Config

from mmrla.datasets.errors import DataError, check_image_file
from mmrla.models.backbones.base import PRETRAINED
from mmrla.weights.errors import CheckpointError, SaveError

from .config_checks import ConfigError, did_you_mean

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# Annotations of larger files are not compared with the categories here: it takes too long.
LARGE_FILE = 64 * 2**20
BYTES_PER_VALUE = 4
# Heads whose classes are not those of the boxes.
OTHER_HEADS = ('rpn', 'semantic', 'panoptic')


class Source:
    """A COCO-format data set that a config names.

    Args:
        loader: The setting that it belongs to, such as ``train_dataloader``.
        dataset: Its config, without wrappers such as ``RepeatDataset``.
    """

    def __init__(self, loader: str, dataset: Dict[str, Any]) -> None:
        self.loader = loader
        root = str(dataset.get('data_root') or '')
        prefix = dataset.get('data_prefix') or {}
        folder = prefix.get('img') or prefix.get('img_path') or '' if isinstance(
            prefix, dict) else prefix
        self.annotations = Path(root) / dataset['ann_file']
        self.images = Path(root) / folder
        self.classes = _class_names(dataset)


def _class_names(dataset: Dict[str, Any]) -> Optional[Tuple[str, ...]]:
    """The classes of a data set's config, or of its class; None if neither has any."""
    metainfo = dataset.get('metainfo')
    classes = (metainfo or {}).get('classes') if isinstance(metainfo, dict) else None
    if classes is None:
        from mmengine.registry import DATASETS
        kind = dataset.get('type')
        try:
            kind = DATASETS.get(kind) if isinstance(kind, str) else kind
        except RuntimeError:  # not registered, which another check reports
            return None
        classes = getattr(kind, 'METAINFO', {}).get('classes')
    if isinstance(classes, str):
        return None if Path(classes).is_file() else (classes,)
    return tuple(classes) if classes else None


def coco_sources(cfg: Config, names: Tuple[str, ...] = LOADERS) -> Iterator[Source]:
    """Yield the COCO-format data sets of a config's loaders."""
    for name in names:
        for dataset in _datasets((cfg.get(name) or {}).get('dataset')):
            if str(dataset.get('ann_file', '')).endswith('.json') and not _is_remote(dataset):
                yield Source(name, dataset)


def _datasets(dataset: Any) -> Iterator[Dict[str, Any]]:
    """The data sets inside wrappers."""
    if not isinstance(dataset, dict):
        return
    if isinstance(dataset.get('dataset'), dict):
        yield from _datasets(dataset['dataset'])
    elif isinstance(dataset.get('datasets'), (list, tuple)):
        for item in dataset['datasets']:
            yield from _datasets(item)
    else:
        yield dataset


def _is_remote(dataset: Dict[str, Any]) -> bool:
    return '://' in f'{dataset.get("data_root")}{dataset.get("ann_file")}'


def read_categories(path: Path) -> List[dict]:
    """The categories of a COCO-format file, without parsing all of it."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f'annotations {path} cannot be read ({error})') from error
    for match in re.finditer(r'"categories"\s*:\s*(?=\[)', text):
        try:
            found = json.JSONDecoder().raw_decode(text, match.end())[0]
        except ValueError:
            continue
        if all(isinstance(item, dict) and 'name' in item for item in found):
            return found
    raise DataError(f'annotations {path} have no list of categories: is this a COCO-format file?')


def check_paths(source: Source) -> None:
    """The annotation file and the folder of the images exist."""
    if not source.annotations.is_file():
        raise DataError(
            f'{source.loader}: annotation file {source.annotations} does not exist; set '
            f'{source.loader}.dataset.data_root and .ann_file{_nearest_file(source.annotations)}')
    if not source.images.is_dir():
        raise DataError(f'{source.loader}: image folder {source.images} does not exist; set '
                        f'{source.loader}.dataset.data_prefix.img')


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return ''
    return did_you_mean(path.name, [item.name for item in path.parent.iterdir()])


def check_classes(source: Source) -> None:
    """Every class of the config is a category of the annotation file."""
    names = [str(category['name']) for category in read_categories(source.annotations)]
    if source.classes is None:
        return
    missing = [name for name in source.classes if name not in names]
    if not missing:
        return
    advice = did_you_mean(missing[0], names)
    if not advice:
        advice = f'; it has {", ".join(names[:8])}{", ..." if len(names) > 8 else ""}'
    raise DataError(
        f'{source.loader}: class {missing[0]!r} of metainfo is not in {source.annotations}{advice}'
        + (f' ({len(missing)} classes are missing; set {source.loader}.dataset.metainfo.classes)'
           if len(missing) > 1 else ''))


def check_category_ids(source: Source) -> None:
    """Every annotation has a category that the file lists."""
    if source.annotations.stat().st_size > LARGE_FILE:
        return
    from mmrla.datasets.checks import read_annotations
    content = read_annotations(source.annotations)
    known = {category.get('id') for category in content['categories']}
    for item in content['annotations']:
        if item.get('category_id') not in known:
            raise DataError(f'annotations {source.annotations}: annotation {item.get("id")} has '
                            f'category_id {item.get("category_id")!r}, which is not in categories '
                            f'({sorted(known)[:5]}, ...)')
    if not content['images']:
        raise DataError(f'annotations {source.annotations} list no images')
    _check_image(source, content['images'][0].get('file_name'))


def _check_image(source: Source, name: Any) -> None:
    """An image of the data set can be read."""
    path = source.images / str(name)
    check_image_file(str(path))
    if not path.is_file():
        raise DataError(f'{source.loader}: image {path} does not exist; {source.annotations} lists '
                        f'it. Set {source.loader}.dataset.data_prefix.img to the folder of the '
                        'images')
    if cv2.imread(str(path)) is None:
        raise DataError(f'{source.loader}: image {path} cannot be read; it may be damaged')


def heads(model: Any, path: str = 'model') -> Iterator[Tuple[str, int]]:
    """Yield the path and ``num_classes`` of every head of a detector's config."""
    if isinstance(model, (list, tuple)):
        for number, item in enumerate(model):
            yield from heads(item, f'{path}.{number}')
    elif isinstance(model, dict):
        for key, value in model.items():
            if key == 'num_classes' and isinstance(value, int):
                yield path, value
            elif any(other in key for other in OTHER_HEADS):
                continue
            elif key.endswith(('head', 'heads')) or isinstance(value, (list, tuple)):
                yield from heads(value, f'{path}.{key}')


def check_heads(cfg: Config, sources: List[Source]) -> None:
    """Every head has as many classes as the data."""
    counts = {source.loader: len(source.classes) for source in sources if source.classes}
    if not counts:
        return
    loader, count = next(iter(counts.items()))
    for path, found in heads(cfg.get('model')):
        if found != count:
            raise ConfigError(f'{path}.num_classes is {found}, but the data of {loader} have '
                              f'{count} classes; set {path}.num_classes={count}')


def check_weights(cfg: Config) -> None:
    """The files of the initial weights are there."""
    places = [('load_from', cfg.get('load_from'))]
    init = ((cfg.get('model') or {}).get('backbone') or {}).get('init_cfg')
    for item in init if isinstance(init, (list, tuple)) else [init]:
        if isinstance(item, dict) and item.get('type') in PRETRAINED:
            places.append(('model.backbone.init_cfg.checkpoint', item.get('checkpoint')))
    for name, place in places:
        if isinstance(place, str) and '://' not in place and not Path(place).expanduser().is_file():
            raise CheckpointError(f'{name}: checkpoint {place} does not exist'
                                  f'{_nearest_file(Path(place).expanduser())}')


def check_work_dir(work_dir: str) -> None:
    """The work dir can be written."""
    path = Path(work_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SaveError(f'work dir {work_dir} cannot be written ({error.strerror}); choose another '
                        'with --work-dir') from error


def check_disk(model: torch.nn.Module, cfg: Config) -> None:
    """The disk has room for the checkpoints that the run keeps.

    Args:
        model: Its parameters are counted.
        cfg: The config of the run.
    """
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    kept = hook.get('max_keep_ckpts', -1)
    epochs = (cfg.get('train_cfg') or {}).get('max_epochs') or 1
    kept = kept if kept and kept > 0 else max(1, epochs // max(1, hook.get('interval') or 1))
    optimizer = ((cfg.get('optim_wrapper') or {}).get('optimizer') or {}).get('type', '')
    copies = 1 + (2 if 'Adam' in str(optimizer) else 1)
    values = sum(parameter.numel() for parameter in model.parameters())
    needed = values * BYTES_PER_VALUE * copies * (kept + 1)
    free = shutil.disk_usage(cfg.work_dir).free
    if free < needed:
        raise SaveError(
            f'{cfg.work_dir} has {free / 2**30:.1f} GB left, but {kept} checkpoints need '
            f'{needed / 2**30:.1f} GB; free some space, choose another --work-dir, or set '
            'default_hooks.checkpoint.max_keep_ckpts=2')


def check_numbers(cfg: Config) -> None:
    """Settings that must be numbers are numbers, which quotes on a command line prevent."""
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    loader = cfg.get('train_dataloader') or {}
    values = [(f'optim_wrapper.optimizer.{name}', optimizer.get(name))
              for name in ('lr', 'weight_decay', 'momentum')]
    values += [('train_dataloader.batch_size', loader.get('batch_size')),
               ('train_cfg.max_epochs', (cfg.get('train_cfg') or {}).get('max_epochs'))]
    for name, value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigError(f'{name} is {value!r}; it must be a number')


def check_run(cfg: Config, loaders: Tuple[str, ...] = LOADERS) -> None:
    """Run the checks that need no model.

    Args:
        cfg: The config of the run.
        loaders: The data that it uses.
    """
    check_numbers(cfg)
    check_work_dir(cfg.work_dir)
    check_weights(cfg)
    sources = list(coco_sources(cfg, loaders))
    seen = set()
    for source in sources:
        check_paths(source)
        check_classes(source)
        if source.annotations not in seen:
            check_category_ids(source)
        seen.add(source.annotations)
    check_heads(cfg, sources)
