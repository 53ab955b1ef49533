"""Recurrent layer aggregation for MMDetection and MMPretrain.

Importing this package makes the installed stack work together and registers
every module in MMEngine's registries.
"""
from . import stack
from .version import __version__

stack.apply()

from . import datasets, engine, evaluation, models  # noqa: E402  (once the stack works)
from .weights import fit  # noqa: E402

__all__ = ['__version__', 'datasets', 'engine', 'evaluation', 'fit', 'models', 'stack']
