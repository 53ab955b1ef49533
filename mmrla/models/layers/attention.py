"""Attention on a residual branch, placed before the residual addition."""
import math
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import ContextBlock, NonLocal2d
from torch import Tensor, nn

from .checks import check_choice, check_positive_int, check_sequence


class NeutralStart(NamedTuple):
    """How an attention starts so that the network computes what it did without it.

    Attributes:
        zeros: The entries of the attention that are set to zero.
        gain: The factor for the norm before the attention. A gate that starts at
            sigmoid(0) = 1/2 halves its input, so the norm is doubled.
    """
    zeros: Tuple[str, ...]
    gain: float


def squeezed(channels: int, ratio: int) -> int:
    """C / ratio, after a check."""
    check_positive_int('attention.ratio', ratio)
    if channels < ratio:
        raise ValueError(f'attention.ratio={ratio!r} leaves none of {channels} channels; '
                         f'choose a ratio of at most {channels}')
    return channels // ratio


class ChannelGate(nn.Module):
    """An attention that scales each channel of each image.

    The factors depend only on the means of the channels. A memory-saving form can
    therefore compute them, and multiply the convolution before the attention by them,
    without the attention's input (:mod:`mmrla.models.lean.gated`).
    """

    def factors(self, means: Tensor) -> Tensor:
        """The factors of the channels, from their means, both of shape (N, C)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of ``x``, of shape (N, C, H, W)."""
        return x * self.factors(F.adaptive_avg_pool2d(x, 1).flatten(1))[..., None, None]


class SE(ChannelGate):
    """Squeeze and excitation, without biases.

    The parameter counts of the SE-ResNets in the paper's tables do not include
    biases; mmdet's ``SELayer`` has biases.

    Args:
        channels: C.
        ratio: Ratio of C to the width of the squeezed vector.
    """
    neutral_start = NeutralStart(('fc.2.weight',), 2.0)

    def __init__(self, channels: int, ratio: int = 16) -> None:
        super().__init__()
        narrow = squeezed(channels, ratio)
        self.fc = nn.Sequential(
            nn.Linear(channels, narrow, bias=False), nn.ReLU(inplace=True),
            nn.Linear(narrow, channels, bias=False), nn.Sigmoid())

    def factors(self, means: Tensor) -> Tensor:
        """The factors of the channels, from their means, both of shape (N, C)."""
        return self.fc(means)


class ECA(ChannelGate):
    """Efficient channel attention: a 1-d convolution along the channels.

    Args:
        channels: C.
        kernel_size: Odd. By default ECA-Net's rule computes it from C, which
            gives 5, 5, 5, 7 for the stages of a bottleneck ResNet.
    """
    neutral_start = NeutralStart(('conv.weight',), 2.0)

    def __init__(self, channels: int, kernel_size: Optional[int] = None) -> None:
        super().__init__()
        if kernel_size is None:
            nearest = int((math.log2(channels) + 1) / 2)
            kernel_size = nearest if nearest % 2 else nearest + 1
        check_positive_int('attention.kernel_size', kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f'attention.kernel_size={kernel_size!r} must be odd')
        self.conv = nn.Conv1d(1, 1, kernel_size, padding=kernel_size // 2, bias=False)

    def factors(self, means: Tensor) -> Tensor:
        """The factors of the channels, from their means, both of shape (N, C)."""
        return self.conv(means[:, None])[:, 0].sigmoid()


class CBAM(nn.Module):
    """Convolutional block attention: of the channels, then of the pixels.

    The channel attention is that of SE, applied to the mean and to the maximum.
    Like SE here it has no biases, which gives the counts in the paper's tables.

    Args:
        channels: C.
        ratio: Ratio of C to the width of the squeezed vector.
        kernel_size: Size of the convolution that weights the pixels; odd.
    """
    # two gates, one of the channels and one of the pixels
    neutral_start = NeutralStart(('fc.2.weight', 'norm.weight', 'norm.bias'), 4.0)

    def __init__(self, channels: int, ratio: int = 16, kernel_size: int = 7) -> None:
        super().__init__()
        check_positive_int('attention.kernel_size', kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f'attention.kernel_size={kernel_size!r} must be odd')
        narrow = squeezed(channels, ratio)
        self.fc = nn.Sequential(
            nn.Linear(channels, narrow, bias=False), nn.ReLU(inplace=True),
            nn.Linear(narrow, channels, bias=False))
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels, then the pixels of ``x``, of shape (N, C, H, W)."""
        mean = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        largest = self.fc(F.adaptive_max_pool2d(x, 1).flatten(1))
        x = x * (mean + largest).sigmoid()[..., None, None]
        over_channels = torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1)
        return x * self.norm(self.conv(over_channels)).sigmoid()


class GC(ContextBlock):
    """The global context block of GCNet, mmcv's.

    Args:
        channels: C.
        ratio: Ratio of C to the width of the transform's bottleneck.
    """
    neutral_start = NeutralStart(
        ('channel_add_conv.3.weight', 'channel_add_conv.3.bias'), 1.0)

    def __init__(self, channels: int, ratio: int = 16) -> None:
        squeezed(channels, ratio)
        super().__init__(channels, 1 / ratio)

    def init_weights(self) -> None:
        """Start as the identity, independent of the backbone's initialisation."""
        self.reset_parameters()


class NL(NonLocal2d):
    """The non-local block in its embedded Gaussian form, mmcv's.

    Args:
        channels: C.
        ratio: Ratio of C to the width of the embeddings.
    """
    neutral_start = NeutralStart(('conv_out.conv.weight', 'conv_out.conv.bias'), 1.0)

    def __init__(self, channels: int, ratio: int = 2) -> None:
        squeezed(channels, ratio)
        super().__init__(channels, reduction=ratio)


ATTENTIONS = dict(SE=SE, ECA=ECA, CBAM=CBAM, GC=GC, NL=NL)
PLACEMENT = ('stages', 'blocks')


def attentions_of_stage(cfg: Optional[Dict[str, Any]], stage: int, num_stages: int,
                        num_blocks: int) -> Sequence[Optional[Dict[str, Any]]]:
    """The attention of each block of a stage, or None where it has none.

    Args:
        cfg: ``attention=dict(type=..., ...)`` of a backbone. Its ``stages``,
            one bool for each stage as in mmdet's plugins, and its ``blocks``,
            positions in a stage (-1 is the last), select the blocks. By
            default every block has it.
        stage: The stage, from 0.
        num_stages: Stages of the backbone.
        num_blocks: Blocks of the stage.
    """
    check_attention(cfg)
    if cfg is None:
        return [None] * num_blocks
    stages = cfg.get('stages', (True,) * num_stages)
    check_sequence('attention.stages', stages, num_stages)
    blocks = cfg.get('blocks', range(num_blocks)) if stages[stage] else ()
    for block in blocks:
        check_choice(f'an entry of attention.blocks for {num_blocks} blocks', block,
                     range(-num_blocks, num_blocks))
    chosen = {block % num_blocks for block in blocks}
    module = {key: value for key, value in cfg.items() if key not in PLACEMENT}
    return [module if block in chosen else None for block in range(num_blocks)]


def check_attention(cfg: Optional[Dict[str, Any]]) -> None:
    """Raise an error for an ``attention=dict(type=..., ...)`` that cannot be built."""
    if cfg is None:
        return
    if not isinstance(cfg, dict) or 'type' not in cfg:
        listed = ', '.join(ATTENTIONS)
        raise ValueError(f'attention={cfg!r} must be None or dict(type=...), '
                         f'with a type among: {listed}')
    check_choice('attention.type', cfg['type'], ATTENTIONS)


def build_attention(cfg: Dict[str, Any], channels: int) -> nn.Module:
    """The module of an ``attention=dict(type=..., ...)`` for C channels."""
    check_attention(cfg)
    arguments = {key: value for key, value in cfg.items() if key != 'type'}
    try:
        return ATTENTIONS[cfg['type']](channels, **arguments)
    except TypeError as error:
        raise ValueError(f'attention={dict(cfg)!r}: {error}') from error
