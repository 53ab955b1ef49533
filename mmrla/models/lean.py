"""The hidden path's cheap forms: less is computed, and less kept for backward.

What block ``t`` hands to the hidden path is mostly the output of a convolution
``C`` and a batch norm, ``y = a (C r) + b`` with a and b for each channel. Then ::

    W y = (W a C) r + W b        r: the narrow input of C
        = (W a) z + W b          z = C r, the norm's input

and autograd keeps r and z for C and the norm anyway: ``y`` need not be kept, and
may be added to the shortcut in place. The same holds for the recurrent unit
``R tanh(a s + b)``: it keeps s alone.

Each function here chooses the cheap form by itself where it is exact, and the
plain one, which reads like the equation, elsewhere: other norms, a batch norm that
synchronises, hooks on a norm, a graph that torch.compile or torch.export traces
(they choose what to keep by themselves). :func:`plain_path` has the plain form
everywhere; the tests compare the two.
"""
import contextlib
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

_plain = False


@contextlib.contextmanager
def plain_path() -> Iterator[None]:
    """Compute everything as the equations are written, to compare with."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def _per_channel(values: Tensor) -> Tensor:
    """(C,) to (1, C, 1, 1)."""
    return values[:, None, None]


def _has_cheap_form(norm: nn.Module, z: Tensor) -> bool:
    """Whether ``norm(z)`` is ``a z + b``, with a and b that can be known."""
    if _plain or torch.compiler.is_compiling() or z.device.type not in ('cpu', 'cuda'):
        return False
    if not isinstance(norm, _BatchNorm) or norm.weight is None or norm.running_mean is None:
        return False
    if not norm.training:
        return True
    synchronises = isinstance(norm, nn.SyncBatchNorm) and torch.distributed.is_initialized()
    return not (synchronises or norm.momentum is None or norm._forward_hooks
                or norm._forward_pre_hooks)


class BatchNormStatistics(Function):
    r"""A training batch norm, and its statistics as differentiable outputs.

    ``y = weight (z - m) s + bias``, with m the mean of the n values of a channel
    and ``s = (variance + eps)**-0.5``. A gradient that reaches m and s adds ::

        dL/dz_i = (dL/dm - dL/ds s^3 (z_i - m)) / n

    to that of the batch norm, which is torch's own.
    """

    @staticmethod
    def forward(ctx, z: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor,
                running_var: Tensor, momentum: float, eps: float
                ) -> Tuple[Tensor, Tensor, Tensor]:
        """(N, C, H, W) to the same shape, and two of shape (C,)."""
        y, mean, invstd, reserve, backend = torch._batch_norm_impl_index(
            z, weight, bias, running_mean, running_var, True, momentum, eps,
            torch.backends.cudnn.enabled)
        ctx.save_for_backward(z, weight, running_mean, running_var, mean, invstd, reserve)
        ctx.backend, ctx.eps = backend, eps
        ctx.set_materialize_grads(False)
        return y, mean, invstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y: Optional[Tensor], grad_mean: Optional[Tensor],
                 grad_invstd: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        """The gradients of z, weight and bias."""
        z, weight, running_mean, running_var, mean, invstd, reserve = ctx.saved_tensors
        grads = (None, None, None)
        if grad_y is not None:
            grads = torch.ops.aten._batch_norm_impl_index_backward(
                ctx.backend, z, grad_y, weight, running_mean, running_var, mean, invstd, True,
                ctx.eps, list(ctx.needs_input_grad[:3]), reserve)
        grad_z, grad_weight, grad_bias = grads
        if grad_mean is not None and ctx.needs_input_grad[0]:
            n = z.numel() // z.shape[1]
            slope = -grad_invstd * invstd**3 / n
            offset = grad_mean / n - slope * mean
            slope, offset = (_per_channel(value).to(z.dtype) for value in (slope, offset))
            grad_z = offset.expand_as(z).clone() if grad_z is None else grad_z.add_(offset)
            grad_z.addcmul_(z, slope)
        return grad_z, grad_weight, grad_bias, None, None, None, None


def _normalise(norm: _BatchNorm, z: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """``norm(z)``, and the mean and 1 / standard deviation that it took."""
    if not norm.training:
        return norm(z), norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)
    norm.num_batches_tracked.add_(1)
    return BatchNormStatistics.apply(z, norm.weight, norm.bias, norm.running_mean,
                                     norm.running_var, norm.momentum, norm.eps)


@dataclass(frozen=True)
class NormedConv:
    """``y = norm(conv(r))``, with what :func:`convolve` needs of it.

    Attributes:
        value: y, of shape (N, C, H, W). Whoever has it may change it in place.
        r: The convolution's input, (N, w, H', W').
        z: The convolution's output, (N, C, H, W).
        conv: The convolution.
        scale: a, of shape (C,); None where the norm is folded.
        offset: b, of shape (C,).
    """
    value: Tensor
    r: Tensor
    z: Tensor
    conv: nn.Module
    scale: Optional[Tensor] = None
    offset: Optional[Tensor] = None

    def add_(self, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in the place of y."""
        return self.value.add_(shortcut)

    def narrow_pays(self) -> bool:
        """Whether r is worth composing two convolutions for each call."""
        if type(self.conv) is not nn.Conv2d or self.conv.bias is not None:
            return False
        channels, width, *size = self.conv.weight.shape
        if size != [1, 1] or self.conv.stride != (1, 1) or self.conv.groups != 1:
            return False
        pixels = self.r.numel() // width
        return pixels * (channels - width) > channels * width


Feature = Union[Tensor, NormedConv]


class FoldedNorm(nn.Identity):
    """Stands behind a convolution that a norm was folded into.

    The hidden path then has a :class:`NarrowConv2d` for it; see
    :func:`mmrla.deploy.fuse`.
    """


class NarrowConv2d(nn.Conv2d):
    """``W C``: takes the input of a folded convolution C to ``W y``."""


def conv_norm(conv: nn.Module, norm: nn.Module, r: Tensor) -> Feature:
    """``norm(conv(r))``, in the form that can be convolved without being kept."""
    z = conv(r)
    if isinstance(norm, FoldedNorm):
        return NormedConv(z, r, z, conv)
    if not _has_cheap_form(norm, z):
        return norm(z)
    value, mean, invstd = _normalise(norm, z)
    scale = norm.weight * invstd
    return NormedConv(value, r, z, conv, scale, norm.bias - mean * scale)


def convolve(conv: nn.Conv2d, feature: Feature) -> Tensor:
    """``W y``, from the narrowest of what is kept of y.

    Args:
        conv: W, a 1x1 convolution to k channels without bias.
        feature: y, of shape (N, C, H, W).

    Returns:
        Tensor: Shape (N, k, H, W).
    """
    if isinstance(feature, Tensor):
        return conv(feature)
    if isinstance(conv, NarrowConv2d):
        return conv(feature.r)
    if type(conv) is not nn.Conv2d:
        return conv(torch.addcmul(_per_channel(feature.offset), feature.z,
                                  _per_channel(feature.scale)))
    with torch.autocast(feature.z.device.type, enabled=False):
        weight = conv.weight.flatten(1)
        bias = weight @ feature.offset
        weight = weight * feature.scale
        source = feature.z
        if feature.narrow_pays():
            source = feature.r
            weight = weight @ feature.conv.weight.flatten(1)
    return F.conv2d(source, weight[..., None, None].to(source.dtype), bias.to(source.dtype))


class ConvTanhNorm(Function):
    """``conv(tanh(norm(s)))``, of which s alone is kept.

    Backward has ``t = tanh(a s + b)`` again, then goes back through the three by
    torch's own operators.
    """

    @staticmethod
    def forward(ctx, s: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor,
                norm: _BatchNorm, conv: nn.Conv2d) -> Tensor:
        """(N, k, H, W) to the same shape."""
        training = norm.training
        if training:
            norm.num_batches_tracked.add_(1)
        t, mean, invstd, reserve, backend = torch._batch_norm_impl_index(
            s, norm_weight, norm_bias, norm.running_mean, norm.running_var, training,
            norm.momentum, norm.eps, torch.backends.cudnn.enabled)
        ctx.save_for_backward(s, weight, norm_weight, norm_bias, norm.running_mean,
                              norm.running_var, mean, invstd, reserve)
        ctx.training, ctx.eps, ctx.backend = training, norm.eps, backend
        ctx.geometry = (conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups)
        return torch.convolution(t.tanh_(), weight, None, *ctx.geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        """The gradients of s and of the three weights."""
        (s, weight, norm_weight, norm_bias, running_mean, running_var, mean, invstd,
         reserve) = ctx.saved_tensors
        center, scale = mean, invstd
        if not ctx.training:
            center, scale = running_mean, torch.rsqrt(running_var + ctx.eps)
        scale = norm_weight * scale
        t = torch.addcmul(_per_channel(norm_bias - center * scale).to(s.dtype), s,
                          _per_channel(scale).to(s.dtype)).tanh_()
        grad_t, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, t, weight, None, *ctx.geometry, [True, ctx.needs_input_grad[1], False])
        grads = torch.ops.aten._batch_norm_impl_index_backward(
            ctx.backend, s, torch.ops.aten.tanh_backward(grad_t, t), norm_weight, running_mean,
            running_var, mean, invstd, ctx.training, ctx.eps,
            [ctx.needs_input_grad[i] for i in (0, 2, 3)], reserve)
        return grads[0], grad_weight, *grads[1:], None, None


def conv_tanh_norm(conv: nn.Module, norm: nn.Module, s: Tensor) -> Tensor:
    """``conv(tanh(norm(s)))``, the recurrent unit ``g2`` of the paper.

    Args:
        conv: R, a convolution of k channels.
        norm: The block's own norm.
        s: Shape (N, k, H, W).
    """
    recomputes = (torch.is_grad_enabled() and type(conv) is nn.Conv2d and conv.bias is None
                  and not isinstance(conv.padding, str) and conv.padding_mode == 'zeros'
                  and _has_cheap_form(norm, s))
    weight = conv.weight if recomputes else None
    if recomputes and torch.is_autocast_enabled(s.device.type):
        weight = weight.to(torch.get_autocast_dtype(s.device.type))
    if not recomputes or weight.dtype != s.dtype:
        u = norm(s)
        return conv(u.tanh() if torch.is_grad_enabled() else u.tanh_())
    return ConvTanhNorm.apply(s, weight, norm.weight, norm.bias, norm, conv)
