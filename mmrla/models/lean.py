"""The hidden path's cheap forms: less is computed, and less kept for backward.

What block ``t`` hands to the hidden path is mostly the output of a convolution
``C`` and a batch norm, ``y = a (C r) + b`` with a and b for each channel. Then ::

    W y = (W a C) r + W b        r: the narrow input of C
        = (W a) z + W b          z = C r, the norm's input

and autograd keeps r and z for C and the norm anyway: ``y`` need not be kept, and
may be added to the shortcut in place. The same holds for the recurrent unit
``R tanh(a s + b)``: it keeps s alone. Inference works in place wherever nobody
else needs what is there.

Each function here chooses the cheap form by itself where it is exact, and the
plain one, which reads like the equation, elsewhere: other norms, a batch norm that
synchronises, hooks on a layer, a graph that torch.compile or torch.export traces
(they choose what to keep by themselves). :func:`plain_path` has the plain form
everywhere; the tests compare the two.
"""
import contextlib
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Optional, Tuple, Union

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


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """(C,) to (C, 1, 1), of another tensor's dtype."""
    return values[:, None, None].to(like.dtype)


def _is_eager(x: Tensor) -> bool:
    """Whether operations run one by one as they are called here."""
    return (not _plain and not torch.compiler.is_compiling()
            and x.device.type in ('cpu', 'cuda'))


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody watches or changes what a module does when it is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _has_cheap_form(norm: nn.Module, z: Tensor) -> bool:
    """Whether ``norm(z)`` is ``a z + b``, with a and b that can be known."""
    if not _is_eager(z) or not isinstance(norm, _BatchNorm) or norm.weight is None:
        return False
    if norm.running_mean is None or _has_hooks(norm):
        return False
    synchronises = isinstance(norm, nn.SyncBatchNorm) and torch.distributed.is_initialized()
    return not norm.training or not synchronises and norm.momentum is not None


def _infers(norm: nn.Module, z: Tensor) -> bool:
    """Whether nothing is to be kept, and ``norm(z)`` may take the place of z."""
    return (not torch.is_grad_enabled() and not norm.training and _has_cheap_form(norm, z)
            and z.dtype == norm.weight.dtype)


def _affine(norm: _BatchNorm, mean: Tensor, invstd: Tensor) -> Tuple[Tensor, Tensor]:
    """a and b of ``norm(z) = a z + b``, of shape (C,)."""
    scale = norm.weight * invstd
    return scale, norm.bias - mean * scale


def _running(norm: _BatchNorm) -> Tuple[Tensor, Tensor]:
    """The mean and 1 / standard deviation of a norm in eval mode."""
    return norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)


def _transform_(z: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """``a z + b`` in the place of z; two passes are faster than one addcmul."""
    return z.mul_(_per_channel(scale, z)).add_(_per_channel(offset, z))


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
        if (grad_mean is not None or grad_invstd is not None) and ctx.needs_input_grad[0]:
            n = z.numel() // z.shape[1]
            slope = torch.zeros_like(mean) if grad_invstd is None else -grad_invstd * invstd**3 / n
            offset = -slope * mean if grad_mean is None else grad_mean / n - slope * mean
            slope, offset = (_per_channel(value, z) for value in (slope, offset))
            grad_z = offset.expand_as(z).clone() if grad_z is None else grad_z.add_(offset)
            grad_z.addcmul_(z, slope)
        return grad_z, grad_weight, grad_bias, None, None, None, None


def _normalise(norm: _BatchNorm, z: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """``norm(z)``, and the mean and 1 / standard deviation that it took."""
    if not norm.training:
        return (norm(z), *_running(norm))
    norm.num_batches_tracked.add_(1)
    return BatchNormStatistics.apply(z, norm.weight, norm.bias, norm.running_mean,
                                     norm.running_var, norm.momentum, norm.eps)


def normalise(norm: nn.Module, z: Tensor) -> Tensor:
    """``norm(z)``, for a z that nobody else needs, of shape (N, C, H, W)."""
    if not _infers(norm, z):
        return norm(z)
    return _transform_(z, *_affine(norm, *_running(norm)))


@dataclass(frozen=True)
class NormedConv:
    """``y = norm(conv(r))``, with what :func:`convolve` needs of it.

    Attributes:
        value: y, of shape (N, C, H, W). Whoever has it may change it in place.
        r: The convolution's input, (N, w, H', W').
        z: The convolution's output, (N, C, H, W); None in inference.
        conv: The convolution.
        scale: a, of shape (C,); None where the norm is folded.
        offset: b, of shape (C,).
    """
    value: Tensor
    r: Tensor
    z: Optional[Tensor]
    conv: nn.Module
    scale: Optional[Tensor] = None
    offset: Optional[Tensor] = None

    def add_(self, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in the place of y."""
        return self.value.add_(shortcut)


Feature = Union[Tensor, NormedConv]


class FoldedNorm(nn.Identity):
    """Stands behind a convolution that a norm was folded into.

    The hidden path then has a :class:`NarrowConv2d` for it; see
    :func:`mmrla.deploy.fuse`.
    """


class NarrowConv2d(nn.Conv2d):
    """``W C``: takes the input of a folded convolution C to ``W y``."""


def _composing_pays(conv: nn.Module, r: Tensor) -> bool:
    """Whether ``(W a C) r`` is cheaper than ``(W a) z``, composing included."""
    if type(conv) is not nn.Conv2d or conv.bias is not None or conv.groups != 1:
        return False
    if not conv.kernel_size == conv.stride == (1, 1):
        return False
    channels, width = conv.out_channels, conv.in_channels
    pixels = r.numel() // width
    return pixels * (channels - width) > 2 * channels * width


def conv_norm(conv: nn.Module, norm: nn.Module, r: Tensor) -> Feature:
    """``norm(conv(r))``, in the form that can be convolved without being kept."""
    z = conv(r)
    if isinstance(norm, FoldedNorm):
        return NormedConv(z, r, None, conv)
    if _has_hooks(conv) or not _has_cheap_form(norm, z):
        return norm(z)
    if _infers(norm, z):
        scale, offset = _affine(norm, *_running(norm))
        value = _transform_(z, scale, offset)
        if not _composing_pays(conv, r):
            return value
        return NormedConv(value, r, None, conv, scale, offset)
    value, mean, invstd = _normalise(norm, z)
    return NormedConv(value, r, z, conv, *_affine(norm, mean, invstd))


def convolve(conv: nn.Conv2d, feature: Feature) -> Tensor:
    """``W y``, from the narrowest of what is kept of y.

    Args:
        conv: W, a 1x1 convolution to k channels without bias.
        feature: y, of shape (N, C, H, W).

    Returns:
        Tensor: Shape (N, k, H, W), which nobody else needs.
    """
    if isinstance(feature, Tensor):
        return conv(feature)
    if isinstance(conv, NarrowConv2d):
        return conv(feature.r)
    if type(conv) is not nn.Conv2d or _has_hooks(conv):
        z = feature.conv(feature.r) if feature.z is None else feature.z
        return conv(z * _per_channel(feature.scale, z) + _per_channel(feature.offset, z))
    source = feature.z
    with torch.autocast(feature.r.device.type, enabled=False):
        weight = conv.weight.flatten(1)
        bias = weight @ feature.offset
        weight = weight * feature.scale
        if source is None or _composing_pays(feature.conv, feature.r):
            source = feature.r
            weight = weight @ feature.conv.weight.flatten(1)
    weight, bias = weight.to(source.dtype), bias.to(source.dtype)
    if _is_product(conv, source) and source.is_contiguous():
        return torch.baddbmm(bias[:, None], weight.expand(len(source), -1, -1), source.flatten(2)
                             ).unflatten(2, source.shape[2:])
    return F.conv2d(source, weight[..., None, None], bias)


class Reading(NamedTuple):
    """``W_h h``, not yet computed, so that its computation can add it.

    Attributes:
        reader: W_h, a 1x1 convolution without bias.
        h: Shape (N, k, H, W).
    """
    reader: nn.Conv2d
    h: Tensor


Term = Union[Tensor, Reading]


def _is_product(conv: nn.Module, x: Tensor) -> bool:
    """Whether to multiply matrices in the place of a 1x1 convolution.

    On a CPU that is faster for the few channels of h, and adds for nothing. A
    GPU's convolutions have kernels, and a precision, of their own.
    """
    return (_is_eager(x) and x.device.type == 'cpu' and not torch.is_autocast_enabled('cpu')
            and type(conv) is nn.Conv2d and conv.kernel_size == conv.stride == (1, 1)
            and conv.groups == 1 and conv.bias is None and not _has_hooks(conv))


def _add_product(out: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """``out + W x``, in the place of ``out`` where autograd does not mind.

    Args:
        out: Shape (N, w, H W).
        weight: Shape (w, k).
        x: Shape (N, k, H, W).
    """
    weight, x = weight.expand(len(x), -1, -1), x.flatten(2)
    # In place, autograd would copy the gradient of what out is a view of.
    return torch.baddbmm(out, weight, x) if torch.is_grad_enabled() else out.baddbmm_(weight, x)


def read(reader: nn.Module, h: Tensor) -> Term:
    """What a block adds to the output of its first convolution."""
    return Reading(reader, h) if _is_product(reader, h) else reader(h)


def join(out: Tensor, term: Term) -> Tensor:
    """``out + term``, for an ``out`` of shape (N, w, H, W) that nobody else needs."""
    if isinstance(term, Tensor):
        return out.add_(term)
    if not out.is_contiguous() or out.dtype != term.h.dtype:
        return out.add_(term.reader(term.h))
    return _add_product(out.flatten(2), term.reader.weight.flatten(1), term.h).view_as(out)


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
        t = _transform_(s.clone(), scale, norm_bias - center * scale).tanh_()
        grad_t, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, t, weight, None, *ctx.geometry, [True, ctx.needs_input_grad[1], False])
        grads = torch.ops.aten._batch_norm_impl_index_backward(
            ctx.backend, s, torch.ops.aten.tanh_backward(grad_t, t), norm_weight, running_mean,
            running_var, mean, invstd, ctx.training, ctx.eps,
            [ctx.needs_input_grad[i] for i in (0, 2, 3)], reserve)
        return grads[0], grad_weight, *grads[1:], None, None


def _recomputes(conv: nn.Module, norm: nn.Module, s: Tensor) -> bool:
    """Whether :class:`ConvTanhNorm` can do what the two modules do."""
    return (torch.is_grad_enabled() and type(conv) is nn.Conv2d and conv.bias is None
            and not isinstance(conv.padding, str) and conv.padding_mode == 'zeros'
            and not _has_hooks(conv) and _has_cheap_form(norm, s))


def conv_tanh_norm(conv: nn.Module, norm: nn.Module, s: Tensor, owned: bool = False) -> Tensor:
    """``conv(tanh(norm(s)))``, the recurrent unit ``g2`` of the paper.

    Args:
        conv: R, a convolution of k channels.
        norm: The block's own norm.
        s: Shape (N, k, H, W).
        owned: Whether nobody else needs ``s``.
    """
    if not torch.is_grad_enabled():
        return conv((normalise(norm, s) if owned else norm(s)).tanh_())
    if not _recomputes(conv, norm, s):
        return conv(norm(s).tanh())
    weight = conv.weight
    if torch.is_autocast_enabled(s.device.type):
        weight = weight.to(torch.get_autocast_dtype(s.device.type))
    if weight.dtype != s.dtype:
        return conv(norm(s).tanh())
    return ConvTanhNorm.apply(s, weight, norm.weight, norm.bias, norm, conv)
