"""What the installed stack needs in order to work together.

:func:`apply` runs on ``import mmrla``. Each piece says what is wrong, with
which versions, and does nothing where nothing is wrong. None changes a result.
"""
import contextlib
import functools
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import numpy as np
import torch
from mmengine import runner as mmengine_runner
from mmengine.dataset import BaseDataset
from mmengine.device import get_device
from mmengine.dist import utils as dist_utils
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner import runner as mmengine_runner_module

from mmrla.datasets.errors import named_full_init
from mmrla.engine import resume
from mmrla.weights import reading, writing

# A torch.library.Library takes its operators back when it is collected.
_TORCHVISION_OPERATORS = []


def apply() -> None:
    """Apply every piece; a second call changes nothing."""
    hide_setuptools_notice()
    declare_torchvision_operators()
    load_checkpoints_safely()
    save_checkpoints_safely()
    resume_from_what_is_readable()
    name_annotation_files()
    train_over_gloo_without_gpu()


def hide_setuptools_notice() -> None:
    """Silence the notice that pkg_resources will go.

    setuptools below 81, which mmcv's build needs, prints it with every config
    that mmengine (0.10.7) reads. The version is pinned.
    """
    warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def declare_torchvision_operators() -> None:
    """Let a torchvision that was built for CUDA be imported by a CPU torch.

    The registry has one torchvision, built for CUDA. With a CPU-only torch its
    compiled operators cannot be loaded, and ``import torchvision`` stops with
    "operator torchvision::nms does not exist" because it describes operators
    that nobody declared. Declaring them is enough for its transforms and
    models, which is what mmpretrain and mmengine use. Unneeded with a
    torchvision built for the installed torch.
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
    operators = torch.library.Library('torchvision', 'FRAGMENT')
    operators.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    operators.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    _TORCHVISION_OPERATORS.append(operators)


def load_checkpoints_safely() -> None:
    """Read checkpoints without running code, mmengine's own included.

    torch loads with ``weights_only`` since 2.6, and mmengine (up to 0.10.7 at
    least) then cannot read what it wrote: its checkpoints hold HistoryBuffers
    and numpy scalars. Exactly these types are allowed here. In the other
    direction, mmengine's downloads go through torch.hub, which still runs code
    by default, as all of torch does under TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD.
    Every file is read by :mod:`mmrla.weights.reading` now.
    """
    torch.serialization.add_safe_globals(_mmengine_checkpoint_types())
    for prefixes, loader in (
            ('', reading.load_from_local),
            ([r'(\S+\:)?s3://', r'(\S+\:)?petrel://'], reading.load_from_ceph),
            ('pavi://', reading.weights_only(mmengine_checkpoint.load_from_pavi)),
            (['open-mmlab://', 'openmmlab://'],
             reading.weights_only(mmengine_checkpoint.load_from_openmmlab))):
        CheckpointLoader.register_scheme(prefixes, loader, force=True)
    mmengine_checkpoint.load_url = reading.load_url
    wrap_once(CheckpointLoader, 'load_checkpoint', reading.with_source)
    wrap_once(mmengine_runner_module, '_load_checkpoint', reading.as_checkpoint)


def _mmengine_checkpoint_types() -> list:
    """The types in an mmengine checkpoint that are not tensors."""
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(kind)) for kind in '?bhilqBHILQefd'}
    return [
        HistoryBuffer, np.ndarray, np.dtype, reconstruct, scalar, *dtypes,
        # as numpy 1 called them
        (reconstruct, 'numpy.core.multiarray._reconstruct'),
        (scalar, 'numpy.core.multiarray.scalar'),
        (_history_buffer_method, 'builtins.getattr'),
    ]


def _history_buffer_method(owner: Any, name: str) -> Callable:
    """All that a checkpoint may look up: a HistoryBuffer names its own methods."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'Unsupported GLOBAL getattr({owner!r}, {name!r})')
    return getattr(owner, name)


def save_checkpoints_safely() -> None:
    """Let a checkpoint appear whole or not at all, whoever saves it.

    mmengine (up to 0.10.7 at least) writes checkpoints in place.
    """
    for module in (mmengine_checkpoint, mmengine_runner, mmengine_runner_module):
        wrap_once(module, 'save_checkpoint', writing.save_checkpoint)


def resume_from_what_is_readable() -> None:
    """Resume from the newest checkpoint that can be read.

    mmengine (up to 0.10.7 at least) resumes from whatever the file
    ``last_checkpoint`` names, there or not, whole or not.
    """
    wrap_once(Runner, 'load_or_resume', resume.load_or_resume)


def name_annotation_files() -> None:
    """Let a data set that cannot be read name its file.

    mmengine, mmdet and pycocotools raise whatever they meet first: a KeyError
    of a key, a JSONDecodeError of a line.
    """
    wrap_once(BaseDataset, '__init__', _init_naming_its_file)


def _init_naming_its_file(init: Callable, dataset: BaseDataset, *args, **kwargs) -> None:
    """``BaseDataset.__init__``, for whichever class overrides ``full_init``."""
    wrap_once(type(dataset), 'full_init', named_full_init)
    init(dataset, *args, **kwargs)


def train_over_gloo_without_gpu() -> None:
    """Let several processes train on a machine without an accelerator.

    mmengine's launchers (0.10.7) call ``torch.cuda.set_device`` and its runner
    gives DDP a GPU's number; both stop a CPU-only run. With an accelerator
    these functions are called as they are.
    """
    for name in ('_init_dist_pytorch', '_init_dist_slurm', '_init_dist_mpi'):
        wrap_once(dist_utils, name, _init_over_gloo)
    wrap_once(Runner, 'wrap_model', _wrap_without_device)


def wrap_once(owner: Any, name: str, wrapper: Callable) -> None:
    """Let ``wrapper(original, ...)`` stand for a function, unless it does so."""
    original = getattr(owner, name)
    if getattr(original, 'wrapper', None) is wrapper:
        return

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    wrapped.wrapper = wrapper
    setattr(owner, name, wrapped)


def _init_over_gloo(init: Callable, backend: str, **kwargs) -> None:
    """A launcher's ``init(backend, ...)``, over gloo where there is no device."""
    if get_device() != 'cpu':
        return init(backend, **kwargs)
    with _without_set_device():
        init('gloo', **kwargs)


@contextlib.contextmanager
def _without_set_device() -> Iterator[None]:
    """There is no device to set."""
    original = torch.cuda.set_device
    torch.cuda.set_device = lambda device: None
    try:
        yield
    finally:
        torch.cuda.set_device = original


def _wrap_without_device(wrap_model: Callable, runner: Runner, model_wrapper_cfg: Optional[dict],
                         model: torch.nn.Module) -> torch.nn.Module:
    """``Runner.wrap_model``, with no device number for DDP on a CPU."""
    if runner.distributed and get_device() == 'cpu':
        defaults = dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=runner.cfg.get('find_unused_parameters', False))
        model_wrapper_cfg = {**defaults, **(model_wrapper_cfg or {})}
    return wrap_model(runner, model_wrapper_cfg, model)
