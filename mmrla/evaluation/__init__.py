"""Metrics; importing this package registers them in MMEngine's METRICS."""
from .metrics import faster_coco_metric

__all__ = ['faster_coco_metric']
