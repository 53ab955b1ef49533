"""Trained detectors on images, folders and videos; importing a name imports mmdet."""
from typing import Any

__all__ = ['CocoWriter', 'Frame', 'InputError', 'OnnxPredictor', 'Predictor', 'open_inputs']
_MODULES = dict(CocoWriter='coco_json', Frame='sources', InputError='sources',
                OnnxPredictor='onnx_predictor', Predictor='predictor', open_inputs='sources')


def __getattr__(name: str) -> Any:
    from importlib import import_module
    if name in _MODULES:
        return getattr(import_module(f'{__name__}.{_MODULES[name]}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
