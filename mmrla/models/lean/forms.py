"""The forms in which a block computes its layers, and the one place that chooses.

A block asks :func:`choose_forms` once per call, and computes all of its layers through
the returned object. ``'plain'`` calls the layers in the order of the equations.
``'memory_saving'`` computes the same values and saves fewer tensors for backward.
``'fused'`` is for a block whose norms :func:`~mmrla.models.lean.fuse.fuse` has folded.

A new memory-saving form is a method here: its plain version in :class:`PlainForms`, the
other one in :class:`MemorySavingForms`.
"""
from typing import Callable, Optional, Sequence

from torch import Tensor, nn

from mmrla.models.layers.attention import ChannelGate

from .conditions import has_hooks, may_save_memory
from .conv_norm import (
    Feature,
    Term,
    apply_layers,
    conv_norm,
    conv_plus,
    last_conv_norm,
    last_fused_conv,
    read,
    sequence,
)
from .pooling import in_pooling_layout, max_pool, relu_max_pool


class PlainForms:
    """Every layer is called, in the order of the equations."""

    def read(self, reader: nn.Module, h: Tensor) -> Term:
        """``W_h h``, the term that a block adds to the output of its first convolution."""
        return reader(h)

    def conv_norm(self, conv: nn.Module, norm: nn.Module, x: Tensor,
                  term: Optional[Term] = None) -> Tensor:
        """``norm(conv(x) + term)``, of shape (N, C, H', W')."""
        return norm(conv_plus(conv, x, term))

    def last_conv_norm(self, conv: nn.Module, norm: nn.Module, r: Tensor,
                       tail: Sequence[nn.Module] = ()) -> Feature:
        """The end of a residual branch: convolution, norm and the layers after it.

        Args:
            conv: The branch's last convolution.
            norm: Its norm.
            r: Its input, of shape (N, w, H, W).
            tail: The layers after the norm, such as an attention.

        Returns:
            Feature: y, of shape (N, C, H', W').
        """
        return apply_layers(tail, norm(conv(r)))

    def sequence(self, layers: nn.Sequential, x: Tensor) -> Tensor:
        """Layers one after another."""
        return layers(x)

    def add(self, y: Feature, shortcut: Tensor) -> Tensor:
        """``y + shortcut``. Not in place: the hidden path may need y."""
        return y + shortcut

    def in_pooling_layout(self, layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``layers(x)`` of a stem in eval mode that ends in max pooling."""
        return layers(x)

    def max_pool(self, pool: nn.Module, x: Tensor) -> Tensor:
        """``pool(x)``."""
        return pool(x)

    def relu_max_pool(self, relu: nn.Module, pool: nn.Module, x: Tensor) -> Tensor:
        """``pool(relu(x))``."""
        return pool(relu(x))


def is_gate(tail: Sequence[nn.Module]) -> bool:
    """Whether the layers after the last norm are a single channel gate without hooks."""
    return len(tail) == 1 and isinstance(tail[0], ChannelGate) and not has_hooks(tail[0])


class MemorySavingForms(PlainForms):
    """The same values, with fewer tensors computed and saved for backward."""

    read = staticmethod(read)
    conv_norm = staticmethod(conv_norm)
    sequence = staticmethod(sequence)
    in_pooling_layout = staticmethod(in_pooling_layout)
    max_pool = staticmethod(max_pool)
    relu_max_pool = staticmethod(relu_max_pool)

    def last_conv_norm(self, conv: nn.Module, norm: nn.Module, r: Tensor,
                       tail: Sequence[nn.Module] = ()) -> Feature:
        """y, in a form that can be convolved without being saved where no tail needs it."""
        if not tail or is_gate(tail):
            return last_conv_norm(conv, norm, r, *tail)
        return apply_layers(tail, conv_norm(conv, norm, r))

    def add(self, y: Feature, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in place where the hidden path does not need y itself."""
        return y + shortcut if isinstance(y, Tensor) else y.plus(shortcut)


class FusedForms(PlainForms):
    """A block whose norms are folded. Its stage reads r instead of y, or not y at all."""

    def conv_norm(self, conv: nn.Module, norm: nn.Module, x: Tensor,
                  term: Optional[Term] = None) -> Tensor:
        """``conv(x) + term``: the norm is a part of the convolution and the term."""
        return conv_plus(conv, x, term)

    def last_conv_norm(self, conv: nn.Module, norm: nn.Module, r: Tensor,
                       tail: Sequence[nn.Module] = ()) -> Feature:
        """``conv(r)``, and the gate after it if there is one; a fused block has no other tail."""
        return last_fused_conv(conv, r, *tail)

    def add(self, y: Feature, shortcut: Tensor) -> Tensor:
        """``y + shortcut``, in place where the hidden path does not need y itself."""
        return y + shortcut if isinstance(y, Tensor) else y.plus(shortcut)


FORMS = dict(plain=PlainForms(), memory_saving=MemorySavingForms(), fused=FusedForms())


def choose_forms(name: str, x: Tensor) -> PlainForms:
    """The forms for one call of a block.

    Args:
        name: The forms that the block is set to, a key of ``FORMS``.
        x: The block's input.
    """
    if name == 'memory_saving' and not may_save_memory(x):
        name = 'plain'
    return FORMS[name]
