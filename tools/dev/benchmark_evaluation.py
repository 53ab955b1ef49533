"""Compare the speed of pycocotools and faster-coco-eval on generated detections.

    python tools/dev/benchmark_evaluation.py --images 5000

Both evaluate the same ground truth and detections, in turn, and their results are
compared.
"""
import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import mmengine
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import METRICS

import mmrla  # noqa: F401  (registers the metric)

CLASSES = 80
KINDS = ('mmdet.CocoMetric', 'FasterCocoMetric')


def generated_data(images: int, objects: int, detections: int) -> Tuple[dict, List[dict]]:
    """Return ground truth in COCO format, and detections as input of mmdet's metric.

    Two thirds of the detections are shifted objects; the others are at random places.
    """
    rng = np.random.default_rng(0)
    annotations, samples = [], []
    for image in range(1, images + 1):
        count = rng.integers(1, 2 * objects)
        corner, extent = rng.uniform(0, 400, (count, 2)), rng.lognormal(4, 1, (count, 2))
        labels, crowd = rng.integers(0, CLASSES, count), rng.random(count) < 0.02
        for box, label, is_crowd in zip(np.hstack([corner, extent]), labels, crowd, strict=True):
            annotations.append(dict(
                id=len(annotations) + 1, image_id=image, category_id=int(label) + 1,
                bbox=box.tolist(), area=float(box[2] * box[3]), iscrowd=int(is_crowd)))
        chosen = rng.integers(0, count, detections)
        found, size = corner[chosen], extent[chosen]
        found = found + rng.normal(0, 0.1, size.shape) * size
        stray = rng.random(detections) < 1 / 3
        found[stray] = rng.uniform(0, 400, (stray.sum(), 2))
        # Scores with two digits: many are equal, as in real detections.
        samples.append(dict(img_id=image, ori_shape=(640, 640), pred_instances=dict(
            bboxes=torch.from_numpy(np.hstack([found, found + size])),
            scores=torch.from_numpy(rng.random(detections).round(2)),
            labels=torch.from_numpy(labels[chosen]))))
    truth = dict(
        images=[dict(id=i, width=640, height=640) for i in range(1, images + 1)],
        categories=[dict(id=i, name=str(i)) for i in range(1, CLASSES + 1)],
        annotations=annotations)
    return truth, samples


def evaluate(kind: str, path: Path, samples: List[dict]) -> Tuple[Dict[str, float], float]:
    """Return the results of a metric and the seconds it took."""
    metric = METRICS.build(dict(
        type=kind, ann_file=str(path), metric='bbox', format_only=False,
        metric_items=['mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l', 'AR@100', 'AR@300',
                      'AR@1000', 'AR_s@1000', 'AR_m@1000', 'AR_l@1000'], classwise=True))
    metric.dataset_meta = dict(classes=[str(i) for i in range(1, CLASSES + 1)])
    metric.process({}, samples)
    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        figures = metric.compute_metrics(metric.results)
        return dict(figures), time.perf_counter() - start


def stats(kind: str, path: Path, samples: List[dict]) -> np.ndarray:
    """Return the twelve COCO figures without the rounding of mmdet's report."""
    from mmdet.datasets.api_wrappers import COCO, COCOeval
    if kind == 'FasterCocoMetric':
        from faster_coco_eval.core.faster_eval_api import COCOeval_faster as COCOeval
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        found = [dict(image_id=sample['img_id'], category_id=int(label) + 1, score=float(score),
                      bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()])
                 for sample in samples
                 for box, score, label in zip(*sample['pred_instances'].values(), strict=True)]
        evaluation = COCOeval(truth, truth.loadRes(found), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return np.asarray(evaluation.stats[:12])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Compare the speed of pycocotools and faster-coco-eval.')
    parser.add_argument('--images', type=int, default=5000, help='number of images')
    parser.add_argument('--objects', type=int, default=7, help='mean number of objects per image')
    parser.add_argument('--detections', type=int, default=100, help='detections per image')
    parser.add_argument('--rounds', type=int, default=1, help='measured rounds')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name in ('images', 'objects', 'detections', 'rounds'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} {getattr(args, name)} must be 1 or more')
    return args


def measure(path: Path, samples: List[dict], rounds: int) -> Tuple[Dict[str, float], bool]:
    """Evaluate with both metrics in turn.

    Returns:
        tuple: The median seconds of each metric, and whether the reports agree.
    """
    times, figures = {kind: [] for kind in KINDS}, {}
    for _ in range(rounds):
        for kind in KINDS:
            figures[kind], seconds = evaluate(kind, path, samples)
            times[kind].append(seconds)
    # The comparison uses repr because a class without objects has NaN.
    same = len({repr(figures[kind]) for kind in KINDS}) == 1
    return {kind: float(np.median(times[kind])) for kind in KINDS}, same


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    from mmdet.utils import register_all_modules
    register_all_modules()
    MMLogger.get_current_instance().setLevel('ERROR')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'truth.json'
        truth, samples = generated_data(args.images, args.objects, args.detections)
        mmengine.dump(truth, path)
        medians, same = measure(path, samples, args.rounds)
        exact = [stats(kind, path, samples) for kind in KINDS]
    slow, fast = (medians[kind] for kind in KINDS)
    print(f'{args.images} images, {len(truth["annotations"])} objects, '
          f'{args.images * args.detections} detections')
    print(f'pycocotools {slow:.1f} s, faster-coco-eval {fast:.1f} s: ratio {slow / fast:.1f}')
    print(f'reported figures equal: {same}')
    print(f'largest difference of the twelve: {np.abs(exact[0] - exact[1]).max():.1e} '
          f'(mAP {exact[0][0]:.12f} and {exact[1][0]:.12f})')


if __name__ == '__main__':
    main()
