"""The cheap forms of a network with a hidden path.

Less is computed, and less kept for backward, with the same numbers out. A batch norm
behind a convolution ``C`` is ``y = a (C r) + b``, with a and b for each channel:

- **A norm whose statistics are fixed** (``norm_eval``, inference) is a part of the
  convolution, ``y = (a C) r + b``: ``z = C r`` is neither made nor kept.
- **What a block hands to the hidden path** need not be kept, and may be added to the
  shortcut in place, since ::

      W y = (W a C) r + W b        r: the narrow input of C
          = (W a) z + W b          z = C r, the norm's input

  and autograd keeps r, or z, for C and the norm anyway.

Each function here chooses the cheap form by itself where it is exact, and the
plain one, which reads like the equation, elsewhere: other norms, a batch norm that
synchronises, hooks on a layer, a graph that torch.compile or torch.export traces
(they choose what to keep by themselves). :func:`plain_path` has the plain form
everywhere; the tests compare the two.
"""
import contextlib
from dataclasses import dataclass
from typing import ContextManager, Iterator, NamedTuple, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .batch_norm import has_fast_statistics, learn, per_channel

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


def is_eager(x: Tensor) -> bool:
    """Whether operations run one by one as they are called here."""
    return (not _plain and not torch.compiler.is_compiling()
            and x.device.type in ('cpu', 'cuda'))


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody watches or changes what a module does when it is called."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks)


def _is_plain_conv(conv: nn.Module) -> bool:
    """Whether a module does what its weight says, and nobody watches it."""
    return type(conv) is nn.Conv2d and not has_hooks(conv)


def _is_affine(norm: nn.Module) -> bool:
    """Whether ``norm(z)`` is ``a z + b``, with a and b that can be known."""
    return (isinstance(norm, _BatchNorm) and norm.weight is not None
            and norm.running_mean is not None and not has_hooks(norm))


def _has_cheap_form(norm: nn.Module, z: Tensor) -> bool:
    """Whether a and b of ``norm(z) = a z + b`` can be had beside it."""
    if not is_eager(z) or not _is_affine(norm):
        return False
    if not norm.training:
        return True
    synchronises = isinstance(norm, nn.SyncBatchNorm) and torch.distributed.is_initialized()
    # torch's own norm stops on a single value, from which nothing can be learnt.
    return not synchronises and norm.momentum is not None and z.numel() > z.shape[1]


def _affine(norm: _BatchNorm, mean: Tensor, invstd: Tensor) -> Tuple[Tensor, Tensor]:
    """a and b of ``norm(z) = a z + b``, of shape (C,)."""
    scale = norm.weight * invstd
    return scale, torch.addcmul(norm.bias, mean, scale, value=-1)


def _running(norm: _BatchNorm) -> Tuple[Tensor, Tensor]:
    """The mean and 1 / standard deviation of a norm in eval mode."""
    return norm.running_mean, torch.rsqrt(norm.running_var + norm.eps)


def _normalise(norm: nn.Module, z: Tensor) -> Tensor:
    """``norm(z)``, for a z of shape (N, C, H, W)."""
    if norm.training and _has_cheap_form(norm, z) and has_fast_statistics(norm, z):
        return learn(norm, z)[0]
    return norm(z)


class Reading(NamedTuple):
    """``W_h h``, not yet computed, so that its computation can add it.

    Attributes:
        reader: W_h, a convolution without bias.
        h: Shape (N, k, H, W).
    """
    reader: nn.Conv2d
    h: Tensor

    def add_to(self, out: Tensor, scale: Optional[Tensor] = None) -> Tensor:
        """``out + a W_h h``, for an ``out`` that nobody else needs.

        Args:
            out: Shape (N, w, H', W').
            scale: a, of shape (w,); None for ones.
        """
        weight = self.reader.weight
        if scale is not None:
            weight = weight * scale.view(-1, 1, 1, 1)
        return out.add_(self.reader._conv_forward(self.h, weight, None))


Term = Union[Tensor, Reading]


def read(reader: nn.Module, h: Tensor) -> Term:
    """What a block adds to the output of its first convolution."""
    if is_eager(h) and _is_plain_conv(reader) and reader.bias is None:
        return Reading(reader, h)
    return reader(h)


def join(out: Tensor, term: Term) -> Tensor:
    """``out + term``, for an ``out`` of shape (N, w, H, W) that nobody else needs."""
    return out.add_(term) if isinstance(term, Tensor) else term.add_to(out)


class _Folded(NamedTuple):
    """``norm(conv(x)) = (a C) x + b`` of a norm in eval mode."""
    weight: Tensor
    bias: Tensor
    scale: Tensor


def _folds(conv: nn.Module, norm: nn.Module, x: Tensor) -> bool:
    """Whether a norm is to become a part of its convolution.

    It is where a filter has fewer values than the output has pixels: what is
    computed, and kept for backward, are as many filters as channels.
    """
    if not (is_eager(x) and _is_affine(norm) and not norm.training and _is_plain_conv(conv)):
        return False
    size, stride = conv.kernel_size, conv.stride
    pixels = x.numel() // x.shape[1] // (stride[0] * stride[1])
    return conv.in_channels // conv.groups * size[0] * size[1] <= pixels


def _fold(conv: nn.Conv2d, norm: _BatchNorm) -> _Folded:
    """a C, of the shape of C, and b and a of shape (C,)."""
    scale, offset = _affine(norm, *_running(norm))
    if conv.bias is not None:
        offset = torch.addcmul(offset, conv.bias, scale)
    return _Folded(conv.weight * scale.view(-1, 1, 1, 1), offset, scale)


def conv_norm(conv: nn.Module, norm: nn.Module, x: Tensor, term: Optional[Term] = None) -> Tensor:
    """``norm(conv(x) + term)``, of shape (N, C, H', W').

    Args:
        conv: A convolution.
        norm: Its norm.
        x: Shape (N, C_in, H, W).
        term: What the hidden path adds, if it does.
    """
    if isinstance(term, Tensor) or not _folds(conv, norm, x):
        z = conv(x)
        return _normalise(norm, z if term is None else join(z, term))
    weight, bias, scale = _fold(conv, norm)
    out = conv._conv_forward(x, weight, bias)
    return out if term is None else term.add_to(out, scale)


def sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Layers one after another, a norm with the convolution before it."""
    if has_hooks(layers):
        return layers(x)
    layers = list(layers)
    while layers:
        layer = layers.pop(0)
        if layers and isinstance(layers[0], _BatchNorm):
            x = conv_norm(layer, layers.pop(0), x)
        else:
            x = layer(x)
    return x


def _full_precision(device_type: str) -> ContextManager:
    """Weights are composed as they are, not in the precision of the images."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


@dataclass(frozen=True)
class NormedConv:
    """``y = norm(conv(r))``, with what :func:`convolve` needs of it.

    ``y = scale (matrix source) + offset``, without the scale or the matrix
    where that is None.

    Attributes:
        value: y, of shape (N, C, H, W). Whoever has it may change it in place.
        source: r with a matrix, z without, of shape (N, w, H, W).
        offset: Shape (C,).
        scale: Shape (C,).
        matrix: Shape (C, w).
    """
    value: Tensor
    source: Tensor
    offset: Tensor
    scale: Optional[Tensor] = None
    matrix: Optional[Tensor] = None

    def plus(self, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in the place of y."""
        return self.value.add_(shortcut)

    def again(self) -> Tensor:
        """y, once more."""
        y = self.source
        if self.matrix is not None:
            y = F.conv2d(y, self.matrix[..., None, None])
        if self.scale is not None:
            y = y * per_channel(self.scale, y)
        return y + per_channel(self.offset, y)

    def weighted(self, weight: Tensor) -> Tensor:
        """``W y`` for a W of shape (k, C), which meets the small factors first."""
        with _full_precision(self.source.device.type):
            bias = weight @ self.offset
            if self.scale is not None:
                weight = weight * self.scale
            if self.matrix is not None:
                weight = weight @ self.matrix
        weight, bias = weight.to(self.source.dtype), bias.to(self.source.dtype)
        return F.conv2d(self.source, weight.view(*weight.shape, 1, 1), bias)


Feature = Union[Tensor, NormedConv]


def _composing_pays(conv: nn.Module, r: Tensor) -> bool:
    """Whether ``(W a C) r`` is cheaper than ``(W a) z``, composing included."""
    if not _is_plain_conv(conv) or conv.bias is not None or conv.groups != 1:
        return False
    if not conv.kernel_size == conv.stride == (1, 1):
        return False
    channels, width = conv.out_channels, conv.in_channels
    pixels = r.numel() // width
    return pixels * (channels - width) > 2 * channels * width


def last_conv_norm(conv: nn.Module, norm: nn.Module, r: Tensor) -> Feature:
    """``norm(conv(r))``, in the form that can be convolved without being kept."""
    composing_pays = _composing_pays(conv, r)
    if composing_pays and _folds(conv, norm, r):
        weight, bias, _ = _fold(conv, norm)
        return NormedConv(conv._conv_forward(r, weight, bias), r, bias, matrix=weight.flatten(1))
    z = conv(r)
    if has_hooks(conv) or not _has_cheap_form(norm, z):
        return norm(z)
    value, mean, invstd = learn(norm, z) if norm.training else (norm(z), *_running(norm))
    scale, offset = _affine(norm, mean, invstd)
    if composing_pays:
        return NormedConv(value, r, offset, scale, conv.weight.flatten(1))
    return NormedConv(value, z, offset, scale)


def convolve(conv: nn.Module, feature: Feature) -> Tensor:
    """``W y``, from the narrowest of what is kept of y.

    Args:
        conv: W, a 1x1 convolution to k channels without bias.
        feature: y, of shape (N, C, H, W).

    Returns:
        Tensor: Shape (N, k, H, W), which nobody else needs.
    """
    if isinstance(feature, Tensor):
        return conv(feature)
    if _is_plain_conv(conv):
        return feature.weighted(conv.weight.flatten(1))
    return conv(feature.again())
