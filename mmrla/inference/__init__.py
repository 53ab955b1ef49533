"""Trained detectors on images, folders and videos."""
from .coco_json import CocoWriter
from .predictor import Predictor
from .sources import Frame, InputError, open_inputs

__all__ = ['CocoWriter', 'Frame', 'InputError', 'Predictor', 'open_inputs']
