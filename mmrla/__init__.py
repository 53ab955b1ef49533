"""Recurrent layer aggregation for MMDetection and MMPretrain.

Importing this package registers its modules in MMEngine's registries. It replaces no
attribute of another package; see :mod:`mmrla.stack` for what it adds.
"""
from . import distributions
from .version import __version__

distributions.check()

# mmengine and mmcv are there.
from . import stack  # noqa: E402

stack.prepare()

# The stack comes first.
from . import datasets, engine, evaluation, models, weights, zoo  # noqa: E402

zoo.register()

__all__ = ['Predictor', '__version__', 'datasets', 'engine', 'evaluation', 'models', 'stack',
           'weights', 'zoo']


def __getattr__(name: str) -> object:
    """Import ``Predictor`` when it is used, because it imports mmdet."""
    if name == 'Predictor':
        from .inference import Predictor
        return Predictor
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
