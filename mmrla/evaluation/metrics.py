"""COCO's figures by a faster program.

    val_evaluator = dict(type='FasterCocoMetric')     # in the place of CocoMetric

or, for any config, ``--cfg-options test_evaluator.type=FasterCocoMetric``. It needs the
package faster-coco-eval, which is pycocotools' algorithm in C++.
"""
import contextlib
from typing import Any, Iterator

from mmengine.registry import METRICS


@contextlib.contextmanager
def _evaluator(module: Any, evaluator: type) -> Iterator[None]:
    """Let mmdet's metric, which names pycocotools' evaluator, use another."""
    original, module.COCOeval = module.COCOeval, evaluator
    try:
        yield
    finally:
        module.COCOeval = original


@METRICS.register_module(name='FasterCocoMetric')
def faster_coco_metric(**kwargs) -> Any:
    """mmdet's ``CocoMetric``, computed by faster-coco-eval.

    Args:
        **kwargs: As for mmdet's ``CocoMetric``.
    """
    # Here and not above: mmrla is imported without mmdet, too.
    from mmdet.evaluation.metrics import coco_metric
    try:
        from faster_coco_eval.core.faster_eval_api import COCOeval_faster
    except ImportError as error:
        raise ImportError("FasterCocoMetric needs a package: pip install faster-coco-eval. "
                          "mmdet's own CocoMetric gives the same figures") from error

    class FasterCocoMetric(coco_metric.CocoMetric):

        def compute_metrics(self, results: list) -> dict:
            with _evaluator(coco_metric, COCOeval_faster):
                return super().compute_metrics(results)

    return FasterCocoMetric(**kwargs)
