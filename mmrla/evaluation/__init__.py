"""Metrics and logged results; importing this package registers the metrics."""
from .metrics import faster_coco_metric

__all__ = ['faster_coco_metric']
