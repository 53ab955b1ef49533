"""Memory-saving forms of a convolution and its norm.

They compute the same values as the layers, but save fewer tensors for backward. A batch
norm after a convolution ``C`` is ``y = a (C r) + b``, with a and b for each channel:

- **A norm with fixed statistics** (``norm_eval``, inference) is folded into the
  convolution, ``y = (a C) r + b``: ``z = C r`` is neither computed nor saved.
- **The residual y**, which a block passes to the hidden path, is not saved, and the
  shortcut is added to it in place, since ::

      W y = (W a C) r + W b        r: the narrow input of C
          = (W a) z + W b          z = C r, the norm's input

  and autograd saves r, or z, for C and the norm in any case. With a channel gate after
  the norm, W and y have factors of their own for each image
  (:mod:`~mmrla.models.lean.gated`).

Each function uses the memory-saving form where it is exact, and calls the layers
elsewhere: for norms other than batch norm, batch norms that synchronise between
processes, and layers with hooks.
"""
import contextlib
from dataclasses import dataclass
from typing import ContextManager, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmrla.models.layers.attention import ChannelGate

from .batch_norm import has_fast_statistics, norm_with_statistics, per_channel
from .conditions import has_hooks, is_affine, is_learning_alone, is_plain_conv, owned
from .conditions import plain_path as plain_path  # callers import it from this module
from .folding import fold, running_statistics, scale_and_offset
from .gated import gated_norm, is_pointwise, means_after, pointwise, scale_channels


def conv_with(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """A convolution with another weight and bias of the same shapes."""
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


class Reading(NamedTuple):
    """``W_h h``, not yet computed, so that it can be scaled and added in place.

    Attributes:
        reader: W_h, a convolution without bias.
        h: Shape (N, k, H, W).
    """
    reader: nn.Conv2d
    h: Tensor

    def value(self, scale: Optional[Tensor] = None) -> Tensor:
        """``a W_h h``, of shape (N, w, H', W').

        Args:
            scale: a, of shape (w,); None for ones.
        """
        weight = self.reader.weight
        if scale is not None:
            weight = weight * scale.view(-1, 1, 1, 1)
        return conv_with(self.reader, self.h, weight, None)


Term = Union[Tensor, Reading]


def read(reader: nn.Module, h: Tensor) -> Term:
    """The term that a block adds to the output of its first convolution."""
    if is_plain_conv(reader) and reader.bias is None:
        return Reading(reader, h)
    return reader(h)


def conv_plus(conv: nn.Module, x: Tensor, term: Optional[Term]) -> Tensor:
    """``conv(x) + term``, of shape (N, w, H', W').

    Args:
        conv: A convolution, or a module that ends in one.
        x: Shape (N, C, H, W).
        term: The term of the hidden path; None adds nothing.
    """
    out = conv(x)
    if term is None:
        return out
    return owned(conv, out).add_(term.value() if isinstance(term, Reading) else term)


def _norm_output(norm: nn.Module, z: Tensor) -> Tensor:
    """``norm(z)``, for a z of shape (N, C, H, W)."""
    if (norm.training and is_affine(norm) and is_learning_alone(norm, z)
            and has_fast_statistics(norm, z)):
        return norm_with_statistics(norm, z)[0]
    return norm(z)


def _folds(conv: nn.Module, norm: nn.Module, x: Tensor) -> bool:
    """Whether a norm is to be folded into its convolution.

    Folding pays where a filter has fewer values than the output has pixels: it computes,
    and saves for backward, one filter per channel.
    """
    if norm.training or not (is_affine(norm) and is_plain_conv(conv)):
        return False
    size, stride = conv.kernel_size, conv.stride
    pixels = x.numel() // x.shape[1] // (stride[0] * stride[1])
    return conv.in_channels // conv.groups * size[0] * size[1] <= pixels


def conv_norm(conv: nn.Module, norm: nn.Module, x: Tensor, term: Optional[Term] = None) -> Tensor:
    """``norm(conv(x) + term)``, of shape (N, C, H', W').

    Args:
        conv: A convolution.
        norm: Its norm.
        x: Shape (N, C_in, H, W).
        term: The term of the hidden path, if there is one.
    """
    if isinstance(term, Tensor) or not _folds(conv, norm, x):
        return _norm_output(norm, conv_plus(conv, x, term))
    weight, bias, scale = fold(conv, norm)
    out = conv_with(conv, x, weight, bias)
    return out if term is None else out.add_(term.value(scale))


def sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Layers one after another, a norm together with the convolution before it."""
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
    """Disable autocast: weights are composed in their own precision."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


@dataclass(frozen=True)
class NormedConv:
    """``y = norm(conv(r))``, with the factors that compute ``W y`` without y.

    ``y = factors (scale (matrix source) + offset)``, without the factors, the scale or
    the matrix where that is None.

    Attributes:
        value: y, of shape (N, C, H, W). The block may modify it in place.
        source: r with a matrix, z without, of shape (N, w, H, W).
        offset: Shape (C,).
        scale: Shape (C,).
        matrix: Shape (C, w).
        factors: Those of a channel gate, of shape (N, C).
    """
    value: Tensor
    source: Tensor
    offset: Tensor
    scale: Optional[Tensor] = None
    matrix: Optional[Tensor] = None
    factors: Optional[Tensor] = None

    def plus(self, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in place."""
        return self.value.add_(shortcut)

    def convolved(self, conv: nn.Module) -> Tensor:
        """``conv(y)``, of shape (N, k, H, W)."""
        return self._weighted(conv.weight.flatten(1)) if is_plain_conv(conv) else conv(self._y())

    def _y(self) -> Tensor:
        """Compute y again."""
        y = self.source
        if self.matrix is not None:
            y = F.conv2d(y, self.matrix[..., None, None])
        if self.scale is not None:
            y = y * per_channel(self.scale, y)
        y = y + per_channel(self.offset, y)
        return y if self.factors is None else y * self.factors[..., None, None]

    def _weighted(self, weight: Tensor) -> Tensor:
        """``W y`` for a W of shape (k, C), which is multiplied by the small tensors first."""
        with _full_precision(self.source.device.type):
            if self.factors is not None:
                weight = weight * self.factors[:, None]
            bias = weight @ self.offset
            if self.scale is not None:
                weight = weight * self.scale
            if self.matrix is not None:
                weight = weight @ self.matrix
        weight, bias = weight.to(self.source.dtype), bias.to(self.source.dtype)
        return pointwise(self.source, weight, bias)


class FusedConv(NamedTuple):
    """``y = C r`` of a fused block, whose stage has ``W C`` instead of ``W``.

    Attributes:
        value: y, of shape (N, C, H, W). The block may modify it in place.
        source: r, of shape (N, w, H, W).
    """
    value: Tensor
    source: Tensor

    def plus(self, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in place."""
        return self.value.add_(shortcut)

    def convolved(self, conv: nn.Module) -> Tensor:
        """``(W C) r``, of shape (N, k, H, W)."""
        return conv(self.source)


Feature = Union[Tensor, NormedConv, FusedConv]


def _composing_pays(conv: nn.Module, r: Tensor, gate: Optional[ChannelGate] = None) -> bool:
    """Whether ``(W a C) r`` is cheaper than ``(W a) z``, including the composition.

    With a gate, each image has a composition of its own.
    """
    if not is_pointwise(conv):
        return False
    channels, width = conv.out_channels, conv.in_channels
    pixels = r.numel() // width if gate is None else r[0, 0].numel()
    return pixels * (channels - width) > 2 * channels * width


def folded_conv(r: Tensor, weight: Tensor, bias: Tensor,
                gate: Optional[ChannelGate] = None) -> NormedConv:
    """A pointwise convolution with a folded norm, and the gate after it.

    Args:
        r: Shape (N, w, H, W).
        weight: ``a C``, of shape (C, w, 1, 1).
        bias: b, of shape (C,).
        gate: A channel gate without hooks, or None.
    """
    matrix = weight.flatten(1)
    if gate is None:
        return NormedConv(pointwise(r, matrix, bias), r, bias, matrix=matrix)
    factors = gate.factors(F.linear(r.mean((2, 3)), matrix, bias))
    value = pointwise(r, matrix * factors[..., None], bias * factors)
    return NormedConv(value, r, bias, matrix=matrix, factors=factors)


Gated = Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]


def _learning_norm(conv: nn.Module, norm: _BatchNorm, r: Tensor, z: Tensor,
                   gate: Optional[ChannelGate]) -> Gated:
    """A norm in training mode and the gate after it: y, the norm's a and b, the factors."""
    y, mean, invstd = norm_with_statistics(norm, z)
    scale, offset = scale_and_offset(norm, mean, invstd)
    if gate is None:
        return y, scale, offset, None
    factors = gate.factors(means_after(conv, r, z) * scale + offset)
    return scale_channels(y, factors, z, scale, offset), scale, offset, factors


def _fixed_norm(conv: nn.Module, norm: _BatchNorm, r: Tensor, z: Tensor,
                gate: Optional[ChannelGate]) -> Gated:
    """A norm in eval mode and the gate after it: y, the norm's a and b, the factors."""
    scale, offset = scale_and_offset(norm, *running_statistics(norm))
    if gate is None:
        return norm(z), scale, offset, None
    factors = gate.factors(means_after(conv, r, z) * scale + offset)
    return gated_norm(norm, z, factors, scale, offset), scale, offset, factors


def last_conv_norm(conv: nn.Module, norm: nn.Module, r: Tensor,
                   gate: Optional[ChannelGate] = None) -> Feature:
    """``gate(norm(conv(r)))``, in a form that can be convolved without being saved.

    Args:
        conv: The branch's last convolution.
        norm: Its norm.
        r: Shape (N, w, H, W).
        gate: A channel gate without hooks, or None.
    """
    composing_pays = _composing_pays(conv, r, gate) and conv.bias is None
    if composing_pays and _folds(conv, norm, r):
        weight, bias, _ = fold(conv, norm)
        return folded_conv(r, weight, bias, gate)
    z = conv(r)
    if has_hooks(conv) or not is_affine(norm) or (
            norm.training and not is_learning_alone(norm, z)):
        return apply_layers([norm] if gate is None else [norm, gate], z)
    normed = _learning_norm if norm.training else _fixed_norm
    value, scale, offset, factors = normed(conv, norm, r, z, gate)
    if composing_pays:
        return NormedConv(value, r, offset, scale, conv.weight.flatten(1), factors)
    return NormedConv(value, z, offset, scale, factors=factors)


def last_fused_conv(conv: nn.Module, r: Tensor, gate: Optional[ChannelGate] = None) -> Feature:
    """:func:`last_conv_norm` of a fused block, whose norm is a part of the convolution.

    A graph that is traced must not depend on the size of r. It gets the convolution and the
    gate, since runtimes such as onnxruntime have fast convolutions for constant weights only.
    The few channels that the hidden path reads are composed for each image there as well.
    """
    if gate is None:
        return FusedConv(owned(conv, conv(r)), r)
    if torch.compiler.is_compiling():
        return _traced_conv(conv, r, gate) if is_pointwise(conv) else gate(conv(r))
    if not _composing_pays(conv, r, gate):
        return gate(conv(r))
    return folded_conv(r, conv.weight, conv.bias, gate)


def _traced_conv(conv: nn.Conv2d, r: Tensor, gate: ChannelGate) -> NormedConv:
    """A pointwise convolution with a folded norm, and the gate after it, in a traced graph."""
    matrix = conv.weight.flatten(1)
    factors = gate.factors(F.linear(r.mean((2, 3)), matrix, conv.bias))
    return NormedConv(conv(r) * factors[..., None, None], r, conv.bias, matrix=matrix,
                      factors=factors)


def apply_layers(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Layers one after another."""
    for layer in layers:
        x = layer(x)
    return x


def convolve(conv: nn.Module, feature: Feature) -> Tensor:
    """``W y``, from the narrowest tensor that is saved of y.

    Args:
        conv: W, a 1x1 convolution to k channels without bias.
        feature: y, of shape (N, C, H, W).

    Returns:
        Tensor: Shape (N, k, H, W), which may be modified in place.
    """
    out = conv(feature) if isinstance(feature, Tensor) else feature.convolved(conv)
    return owned(conv, out)
