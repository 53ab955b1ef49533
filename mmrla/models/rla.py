"""Recurrent layer aggregation: section 3.3 of the paper as code.

A residual stage has two paths. The main path is the backbone's own; the hidden
path is an RNN whose time is depth. Block ``t`` computes::

    y^t = f^t(Concat(x^{t-1}, h^{t-1}))     the residual branch, which reads h
    x^t = relu(y^t + shortcut(x^{t-1}))
    h^t = g2(g1(y^t) + h^{t-1})             g1: 1x1 conv; g2: norm, tanh, 3x3 conv

``g1`` and the convolution of ``g2`` are shared by all blocks of a stage, the
norm is each block's own, and ``h^0 = 0``.

Nothing here knows which backbone it serves. A backbone runs its blocks through
:meth:`RLAStage.forward`; a block takes ``(x, hidden_term)``, adds the term to
the output of its first convolution and returns its :class:`BlockFeatures`.
"""
from dataclasses import dataclass, fields
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

import torch.nn.functional as F
from mmcv.cnn import build_conv_layer, build_norm_layer
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from .checks import check_choice, check_keys, check_positive_int


class BlockFeatures(NamedTuple):
    """What a residual block computed, each of shape (N, C, H', W').

    Attributes:
        residual: ``y``, the residual branch after its last norm and attention.
        shortcut: What ``y`` is added to; None in a block without a shortcut.
        out: ``x' = relu(y + shortcut)``.
    """
    residual: Tensor
    shortcut: Optional[Tensor]
    out: Tensor


class Variant(NamedTuple):
    """How new information enters the hidden state (figure 4 of the paper).

    Attributes:
        source: The field of :class:`BlockFeatures` that is compressed.
        recurrent: Whether it is added before the recurrent unit, so that it
            passes through it, or behind it.
    """
    source: str
    recurrent: bool


VARIANTS = {
    'v1': Variant('residual', True),
    'v2': Variant('residual', False),
    'v3': Variant('out', True),
    'v4': Variant('out', False),
    'v5': Variant('shortcut', True),
    'v6': Variant('shortcut', False),
}


@dataclass(frozen=True)
class RLAConfig:
    """The ``rla=dict(...)`` of a backbone, checked.

    Args:
        channels: ``k``, the channels of the hidden state. The paper has 32 on
            ImageNet and COCO.
        variant: One of ``VARIANTS``. ``'v1'`` is the paper's proposal; the
            authors' published weights were trained with ``'v3'``.
    """
    channels: int = 32
    variant: str = 'v1'

    def __post_init__(self) -> None:
        check_positive_int('rla.channels', self.channels)
        check_choice('rla.variant', self.variant, VARIANTS)

    @classmethod
    def parse(cls, cfg: Optional[Dict[str, Any]]) -> Optional['RLAConfig']:
        """Check a config's dict; None, for a plain network, stays None."""
        if cfg is None:
            return None
        check_keys('rla', cfg, [field.name for field in fields(cls)])
        return cls(**cfg)


def reader_like(conv: nn.Conv2d, channels: int, conv_cfg: Optional[dict] = None) -> nn.Module:
    """``W_h`` for a block whose first convolution is ``conv``.

    ``f(Concat(x, h))`` begins with a convolution, which is linear:
    ``conv(Concat(x, h)) = W_x x + W_h h``. ``W_x`` stays the block's own
    convolution, with the shape it has in the plain network.

    Args:
        conv: The block's first convolution, ``W_x``.
        channels: k, the channels of h.
        conv_cfg: Config of the convolution, as in mmcv.
    """
    return build_conv_layer(
        conv_cfg, channels, conv.out_channels, conv.kernel_size, stride=conv.stride,
        padding=conv.padding, dilation=conv.dilation, bias=False)


class RLAStage(BaseModule):
    """The hidden path along the blocks of one stage.

    Args:
        readers: For each block, the module that turns h into the term which
            the block adds to the output of its first convolution; see
            :func:`reader_like`.
        feature_channels: C, the channels of the blocks' output.
        stride: The stride of the first block, by which h is pooled.
        num_updates: How many of the blocks update h. One fewer than there are
            blocks in the last stage of a detector: nobody reads the h that its
            last block would make, so that block has no norm to train. A stage
            with 0 updates has neither ``g1`` nor ``g2``.
        config: The variant and the channels k of h.
        recurrent: The convolution of ``g2``, where it is not a 3x3 convolution
            of this stage's own.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        init_cfg: As in mmengine. By default what the paper's ResNets use.
    """

    def __init__(self,
                 readers: Sequence[nn.Module],
                 feature_channels: int,
                 stride: int,
                 num_updates: int,
                 config: RLAConfig,
                 recurrent: Optional[nn.Module] = None,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Optional[dict] = dict(type='Kaiming', layer='Conv2d')) -> None:
        super().__init__(init_cfg)
        k = config.channels
        self.channels = k
        self.stride = stride
        self.variant = VARIANTS[config.variant]
        if num_updates:
            self.compress = build_conv_layer(conv_cfg, feature_channels, k, 1, bias=False)
            self.recurrent = recurrent or build_conv_layer(
                conv_cfg, k, k, 3, padding=1, bias=False)
        self.norms = ModuleList(
            [build_norm_layer(norm_cfg, k)[1] for _ in range(num_updates)])
        self.readers = ModuleList(readers)

    def initial_state(self, x: Tensor) -> Tensor:
        """h^0 = 0, like ``x`` of shape (N, C, H, W) in all but its channels.

        Returns:
            Tensor: Shape (N, k, H, W), of the dtype and device of ``x``.
        """
        return x.new_zeros(x.shape[0], self.channels, *x.shape[2:])

    def pool(self, h: Tensor) -> Tensor:
        """Bring h to the resolution behind a block of stride s.

        Like the block's convolution it rounds up: an odd side ends in a window
        that holds fewer than s pixels, and averages those.
        """
        if self.stride == 1:
            return h
        return F.avg_pool2d(
            h, self.stride, self.stride, ceil_mode=True, count_include_pad=False)

    def update(self, t: int, h: Tensor, features: BlockFeatures) -> Tensor:
        """h^t from h^{t-1} and what block ``t`` computed.

        Args:
            t: The block's position in the stage, from 0.
            h: Shape (N, k, H, W).
            features: Of block ``t``, shapes (N, C, H', W').

        Returns:
            Tensor: Shape (N, k, H', W').
        """
        if t == 0:
            h = self.pool(h)
        new = self.compress(getattr(features, self.variant.source))
        if self.variant.recurrent:
            return self.recurrent(self.norms[t](h + new).tanh())
        return self.recurrent(self.norms[t](h).tanh()) + new

    def step(self, t: int, block: nn.Module, x: Tensor, h: Tensor) -> Tuple[Tensor, Tensor]:
        """One block of both paths: ``(x, h)`` becomes ``(x', h')``."""
        features = block(x, self.readers[t](h))
        if t < len(self.norms):
            h = self.update(t, h, features)
        return features.out, h

    def forward(self, blocks: Iterable[nn.Module], x: Tensor, h: Optional[Tensor],
                run=lambda function, *args: function(*args)) -> Tuple[Tensor, Tensor]:
        """Run a stage.

        Args:
            blocks: The stage's residual blocks.
            x: Shape (N, C_in, H, W).
            h: Shape (N, k, H, W), or None before the first stage.
            run: Calls a function with its arguments; a backbone passes its
                activation checkpointing here.

        Returns:
            tuple[Tensor, Tensor]: x and h behind the stage.
        """
        if h is None:
            h = self.initial_state(x)
        for t, block in enumerate(blocks):
            x, h = run(self.step, t, block, x, h)
        return x, h
