"""Recurrent layer aggregation for MMDetection and MMPretrain.

Importing this package registers its modules in MMEngine's registries. It replaces no
attribute of another package; see :mod:`mmrla.stack` for what it adds.
"""
from . import stack
from .version import __version__

stack.prepare()

from . import datasets, engine, evaluation, models, weights, zoo  # noqa: E402  (the stack comes first)

zoo.register()

__all__ = ['__version__', 'datasets', 'engine', 'evaluation', 'models', 'stack', 'weights', 'zoo']
