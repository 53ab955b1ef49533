"""COCO metrics computed by faster-coco-eval.

    val_evaluator = dict(type='FasterCocoMetric')     # instead of CocoMetric

or, for any config, ``--cfg-options test_evaluator.type=FasterCocoMetric``. The package
faster-coco-eval implements the algorithm of pycocotools in C++.
"""
import contextlib
from typing import Any, Iterator

from mmengine.registry import METRICS


@contextlib.contextmanager
def _evaluator(module: Any, evaluator: type) -> Iterator[None]:
    """Replace the ``COCOeval`` of mmdet's metric module while the context is active."""
    original, module.COCOeval = module.COCOeval, evaluator
    try:
        yield
    finally:
        module.COCOeval = original


@METRICS.register_module(name='FasterCocoMetric')
def faster_coco_metric(**kwargs) -> Any:
    """Build mmdet's ``CocoMetric`` with the evaluator of faster-coco-eval.

    Args:
        **kwargs: Arguments of mmdet's ``CocoMetric``.
    """
    # Imported here because mmrla must be importable without mmdet.
    from mmdet.evaluation.metrics import coco_metric
    try:
        from faster_coco_eval.core.faster_eval_api import COCOeval_faster
    except ImportError as error:
        raise ImportError('FasterCocoMetric needs the package faster-coco-eval: pip install '
                          'faster-coco-eval, or use CocoMetric, which gives the same '
                          'figures') from error

    class FasterCocoMetric(coco_metric.CocoMetric):

        def compute_metrics(self, results: list) -> dict:
            with _evaluator(coco_metric, COCOeval_faster):
                return super().compute_metrics(results)

    return FasterCocoMetric(**kwargs)
