"""Recurrent layer aggregation for MMDetection and MMPretrain.

Importing this package makes the installed stack work together and registers
every module in MMEngine's registries.
"""
from . import compat
from .version import __version__

compat.apply()

from . import datasets, evaluation, hooks, models, pretrained  # noqa: E402  (once the stack works)

__all__ = ['__version__', 'compat', 'datasets', 'evaluation', 'hooks', 'models', 'pretrained']
