"""What the installed versions need in order to work together.

:func:`prepare` runs on ``import mmrla``. Each step adds something through a documented
mechanism; none replaces an attribute of another package or changes a result.
"""
import contextlib
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

# A torch.library.Library removes its operators when it is garbage-collected.
_TORCHVISION_OPERATORS = []


def prepare() -> None:
    """Apply every step; a second call changes nothing."""
    hide_setuptools_notice()
    declare_torchvision_operators()
    allow_mmengine_checkpoints()


def hide_setuptools_notice() -> None:
    """Filter the warning that pkg_resources is deprecated.

    setuptools below 81, which mmcv's build needs, prints it for every config that mmengine
    (0.10.7) reads.
    """
    warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def declare_torchvision_operators() -> None:
    """Let a CPU-only torch import a torchvision that was built for CUDA.

    The registry has one torchvision, built for CUDA. A CPU-only torch cannot load its
    compiled operators, and ``import torchvision`` raises "operator torchvision::nms does
    not exist". Declaring the schemas is enough for the transforms and models that
    mmpretrain and mmengine use. A torchvision that fits torch needs nothing.
    """
    if _TORCHVISION_OPERATORS or torch.version.cuda is not None:
        return
    spec = find_spec('torchvision')
    if spec is None:
        return
    for library in Path(spec.origin).parent.glob('_C*.so'):
        with contextlib.suppress(OSError):
            torch.ops.load_library(library)
            return
    if hasattr(torch.ops.torchvision, 'nms'):  # somebody else declared them
        return
    operators = torch.library.Library('torchvision', 'FRAGMENT')
    operators.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    operators.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    _TORCHVISION_OPERATORS.append(operators)


def allow_mmengine_checkpoints() -> None:
    """Let ``torch.load(weights_only=True)`` read mmengine's own checkpoints.

    They contain HistoryBuffers and numpy scalars. torch loads weights only since 2.6, and
    mmengine (up to 0.10.7 at least) cannot read what it wrote. Exactly these types are
    allowed; a file that carries code is still refused.

    onedl-mmengine (0.10.12) allows such types while it loads, and takes them off the list
    afterwards, also those that were on it before. mmrla's readers therefore call this function
    for every file.
    """
    torch.serialization.add_safe_globals(_mmengine_checkpoint_types())


def _mmengine_checkpoint_types() -> list:
    """The types in an mmengine checkpoint that are not tensors."""
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(kind)) for kind in '?bhilqBHILQefd'}
    return [
        HistoryBuffer, np.ndarray, np.dtype, reconstruct, scalar, *dtypes,
        # the names that numpy 1 used
        (reconstruct, 'numpy.core.multiarray._reconstruct'),
        (scalar, 'numpy.core.multiarray.scalar'),
        (_history_buffer_method, 'builtins.getattr'),
    ]


def _history_buffer_method(owner: Any, name: str) -> Callable:
    """The only lookup that a checkpoint may do: a HistoryBuffer names its own methods."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'Unsupported GLOBAL getattr({owner!r}, {name!r})')
    return getattr(owner, name)
