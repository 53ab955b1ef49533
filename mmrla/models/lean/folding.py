"""Folding a batch norm with fixed statistics into the convolution before it.

``norm(conv(x)) = a (C x) + b = (a C) x + b``, with a and b for each channel. Training
with ``norm_eval``, inference and the fused model all use :func:`fold`.
"""
from typing import NamedTuple, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Folded(NamedTuple):
    """The convolution that computes ``norm(conv(x))``.

    Attributes:
        weight: ``a C``, of the shape of the convolution's weight.
        bias: b, of shape (C,).
        scale: a, of shape (C,).
    """
    weight: Tensor
    bias: Tensor
    scale: Tensor


def scale_and_offset(norm: _BatchNorm, mean: Tensor, invstd: Tensor) -> Tuple[Tensor, Tensor]:
    """a and b of ``norm(z) = a z + b``.

    Args:
        norm: A batch norm, with or without weight and bias.
        mean: Shape (C,).
        invstd: 1 / standard deviation, of shape (C,).

    Returns:
        tuple[Tensor, Tensor]: a and b, each of shape (C,).
    """
    scale = invstd if norm.weight is None else norm.weight * invstd
    if norm.bias is None:
        return scale, -mean * scale
    return scale, torch.addcmul(norm.bias, mean, scale, value=-1)


def running_statistics(norm: _BatchNorm) -> Tuple[Tensor, Tensor]:
    """The mean and 1 / standard deviation of a norm in eval mode, of shape (C,)."""
    return norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)


def fold(conv: nn.Conv2d, norm: _BatchNorm) -> Folded:
    """Compose a convolution and its norm in eval mode; both stay as they are."""
    scale, offset = scale_and_offset(norm, *running_statistics(norm))
    if conv.bias is not None:
        offset = torch.addcmul(offset, conv.bias, scale)
    weight = conv.weight * scale.view(-1, 1, 1, 1)
    return Folded(weight.to(conv.weight.dtype), offset.to(conv.weight.dtype), scale)
