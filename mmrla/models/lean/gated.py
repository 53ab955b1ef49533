"""Channel gates (SE, ECA) after a convolution and its norm.

A gate multiplies channel c of image n by ``s[n, c]``, which it computes from the means of
the channels. The norm is ``y = a (C r) + b``, so with a pointwise C the means are ::

    mean(y) = (a C) mean(r) + b          r: the narrow input of C

and s is known before y is computed. The gated output is one product with weights of each
image's own, ``y' = (s a C) r + s b``.

Where z = C r is computed first, a norm with fixed statistics takes the factors into its own
weight and bias, ``y' = (s a) z + s b``. The output of a norm in training mode is scaled in
place: backward needs z, which the norm saves, and not y.
"""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from .batch_norm import per_channel
from .conditions import is_plain_conv
from .cpu import is_channels_last


def is_pointwise(conv: nn.Module) -> bool:
    """Whether a module is a plain 1x1 convolution of stride 1 without groups and hooks."""
    return (is_plain_conv(conv) and conv.groups == 1
            and conv.kernel_size == conv.stride == (1, 1) and conv.padding == (0, 0))


def pointwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 1x1 convolution, with one weight for all images or with one for each image.

    Args:
        x: Shape (N, w, H, W).
        weight: Shape (C, w) or (N, C, w).
        bias: Shape (C,) or (N, C).

    Returns:
        Tensor: Shape (N, C, H, W), in the memory format of x unless a graph is traced, which
        must not depend on the number of images and on their layout.
    """
    is_traced = torch.compiler.is_compiling()
    if weight.dim() == 3 and not is_traced and len(x) == 1:
        weight, bias = weight[0], bias[0]
    if weight.dim() == 2:
        return F.conv2d(x, weight[..., None, None], bias)
    if not is_traced and is_channels_last(x):
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)
        out = torch.baddbmm(bias[:, None], pixels, weight.transpose(1, 2))
        return out.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
    return torch.baddbmm(bias[..., None], weight, x.flatten(2)).unflatten(2, x.shape[2:])


def means_after(conv: nn.Module, r: Tensor, z: Tensor) -> Tensor:
    """The means of the channels of ``z = conv(r)``, from the narrower tensor.

    Returns:
        Tensor: Shape (N, C).
    """
    if is_pointwise(conv):
        return F.linear(r.mean((2, 3)), conv.weight.flatten(1), conv.bias)
    return z.mean((2, 3))


def gated_norm(norm: _BatchNorm, z: Tensor, factors: Tensor, scale: Tensor,
               offset: Tensor) -> Tensor:
    """A norm with fixed statistics and the gate after it, ``(s a) z + s b``.

    torch's norm computes it in one pass if the images become channels of one image, so
    that each image has its own weight and bias.

    Args:
        norm: In eval mode, with weight and bias.
        z: Shape (N, C, H, W).
        factors: s, of shape (N, C).
        scale: a, of shape (C,).
        offset: b, of shape (C,).
    """
    number = len(z)
    if number > 1 and not z.is_contiguous():
        factors = factors[..., None, None].to(z.dtype)
        return z * (factors * per_channel(scale, z)) + factors * per_channel(offset, z)
    out = F.batch_norm(
        z.reshape(1, -1, *z.shape[2:]), norm.running_mean.repeat(number),
        norm.running_var.repeat(number), (norm.weight * factors).flatten(),
        (norm.bias * factors).flatten(), training=False, eps=norm.eps)
    return out.view(z.shape)


class ScaleChannels(Function):
    """``y s`` in place, for a ``y = a z + b`` that is computed again for backward.

    A gradient of y reaches z through the layers that computed y, so z, a and b get none here.
    """

    @staticmethod
    def forward(ctx, y: Tensor, factors: Tensor, z: Tensor, scale: Tensor,
                offset: Tensor) -> Tensor:
        """y and z of shape (N, C, H, W), s of shape (N, C), a and b of shape (C,)."""
        ctx.save_for_backward(factors, z, scale, offset)
        ctx.mark_dirty(y)
        return y.mul_(factors[..., None, None])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        """``dL/dy = s dL/dy'`` and ``dL/ds = sum of y dL/dy' = a sum(z g) + b sum(g)``."""
        factors, z, scale, offset = ctx.saved_tensors
        products = torch.linalg.vecdot(grad.flatten(2), z.to(grad.dtype).flatten(2))
        grad_factors = scale * products + offset * grad.sum((2, 3))
        return (grad * factors[..., None, None].to(grad.dtype), grad_factors.to(factors.dtype),
                None, None, None)


def scale_channels(y: Tensor, factors: Tensor, z: Tensor, scale: Tensor,
                   offset: Tensor) -> Tensor:
    """``y s`` for ``y = a z + b``, in place, without saving y for backward.

    Args:
        y: Shape (N, C, H, W). It is modified in place.
        factors: s, of shape (N, C).
        z: Shape (N, C, H, W).
        scale: a, of shape (C,).
        offset: b, of shape (C,).
    """
    factors = factors.to(y.dtype)
    return ScaleChannels.apply(y, factors, z.detach(), scale.detach(), offset.detach())
