"""COCO's evaluation by pycocotools and by faster-coco-eval, on made-up detections.

    python tools/dev/benchmark_evaluation.py --images 5000

Both get the same ground truth and detections, take turns, and must agree.
"""
import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

import mmengine
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import METRICS

import mmrla  # noqa: F401  (registers the metric and mends the stack)

CLASSES = 80


def made_up(images: int, objects: int, detections: int) -> Tuple[dict, List[dict]]:
    """Ground truth in COCO's format, and detections as mmdet's metric takes them.

    Two in three detections are an object, moved a little; the rest is anywhere.
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
        # Scores with two digits: many are equal, as they are in real detections.
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
    """The figures of a metric, and the seconds that it took for them."""
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
    """All twelve figures as they are computed, not rounded as mmdet reports them."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description='Time the evaluation of detections.')
    parser.add_argument('--images', type=int, default=5000)
    parser.add_argument('--objects', type=int, default=7, help='of an image, on average')
    parser.add_argument('--detections', type=int, default=100, help='of an image')
    parser.add_argument('--rounds', type=int, default=1)
    args = parser.parse_args()
    for name in ('images', 'objects', 'detections', 'rounds'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} {getattr(args, name)} must be 1 or more')
    from mmdet.utils import register_all_modules
    register_all_modules()
    MMLogger.get_current_instance().setLevel('ERROR')
    kinds = ('mmdet.CocoMetric', 'FasterCocoMetric')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'truth.json'
        truth, samples = made_up(args.images, args.objects, args.detections)
        mmengine.dump(truth, path)
        times, figures = {kind: [] for kind in kinds}, {}
        for _ in range(args.rounds):
            for kind in kinds:
                figures[kind], seconds = evaluate(kind, path, samples)
                times[kind].append(seconds)
        slow, fast = (np.median(times[kind]) for kind in kinds)
        exact = [stats(kind, path, samples) for kind in kinds]
    same = repr(figures[kinds[0]]) == repr(figures[kinds[1]])  # a class without objects has NaN
    print(f'{args.images} images, {len(truth["annotations"])} objects, '
          f'{args.images * args.detections} detections')
    print(f'pycocotools {slow:.1f} s, faster-coco-eval {fast:.1f} s: {slow / fast:.1f} times')
    print(f'reported figures equal: {same}')
    print(f'largest difference of the twelve: {np.abs(exact[0] - exact[1]).max():.1e} '
          f'(mAP {exact[0][0]:.12f} and {exact[1][0]:.12f})')


if __name__ == '__main__':
    main()
