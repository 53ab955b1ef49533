"""Weights: files, layouts, and how models take them.

Importing this package registers the initializer ``PretrainedBackbone``, the file backend
``'atomic'``, and the checkpoint names that mmengine does not know.
"""
from . import writing
from .errors import CheckpointError, SaveError
from .fit import LoadReport
from .loading import PretrainedBackbone, load_weights
from .sources import load_checkpoint, read_safely, register_new_names

register_new_names()

__all__ = ['CheckpointError', 'LoadReport', 'PretrainedBackbone', 'SaveError', 'load_checkpoint',
           'load_weights', 'read_safely', 'writing']
