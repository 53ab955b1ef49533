"""Conditions under which a memory-saving form may replace a layer's own computation."""
import contextlib
import os
from typing import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm

# The environment variable turns off the memory-saving forms of all networks.
_plain_only = os.environ.get('MMRLA_MEMORY_SAVING') == '0'


@contextlib.contextmanager
def plain_path() -> Iterator[None]:
    """Use the plain forms instead of the memory-saving ones, for comparison."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def may_save_memory(x: Tensor) -> bool:
    """Whether memory-saving forms may be used for a block with the input ``x``.

    They need operators that run one by one as they are called. A graph that
    torch.compile, torch.export or torch.jit.trace traces decides by itself what to save.
    """
    return (not _plain_only and not torch.compiler.is_compiling() and not torch.jit.is_tracing()
            and x.device.type in ('cpu', 'cuda'))


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook observes or changes a module when it is called.

    Hooks that are registered for all modules count too.
    """
    # torch 2.6 has no function that combines the hooks for all modules.
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or torch_module._global_forward_hooks
                or torch_module._global_forward_pre_hooks or torch_module._global_backward_hooks
                or torch_module._global_backward_pre_hooks)


def owned(module: nn.Module, out: Tensor) -> Tensor:
    """The output of a module, as a tensor that may be modified in place.

    A hook may hold the output itself, so a module with hooks gets a copy.
    """
    return out.clone() if has_hooks(module) else out


def is_plain_conv(conv: nn.Module) -> bool:
    """Whether a module is a zero-padded convolution with its own weight and without hooks."""
    return type(conv) is nn.Conv2d and conv.padding_mode == 'zeros' and not has_hooks(conv)


def is_affine(norm: nn.Module) -> bool:
    """Whether ``norm(z)`` is ``a z + b``, with an a and b that can be computed, without hooks."""
    return (isinstance(norm, _BatchNorm) and norm.weight is not None
            and norm.running_mean is not None and not has_hooks(norm))


def is_learning_alone(norm: _BatchNorm, z: Tensor) -> bool:
    """Whether a norm in training mode takes its statistics from this process's batch.

    torch's own norm raises an error for a single value per channel, so that case is
    left to it.
    """
    synchronises = isinstance(norm, nn.SyncBatchNorm) and torch.distributed.is_initialized()
    return not synchronises and norm.momentum is not None and z.numel() > z.shape[1]
