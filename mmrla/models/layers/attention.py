"""Attention on a residual branch, placed before the residual addition."""
import math
from typing import Any, Dict, Optional, Sequence

import torch
import torch.nn.functional as F
from mmcv.cnn import ContextBlock, NonLocal2d
from torch import Tensor, nn

from .checks import check_choice, check_positive_int, check_sequence


def squeezed(channels: int, ratio: int) -> int:
    """C / ratio, checked."""
    check_positive_int('attention.ratio', ratio)
    if channels < ratio:
        raise ValueError(f'attention.ratio={ratio!r} squeezes {channels} channels to none; '
                         f'take a ratio of at most {channels}')
    return channels // ratio


class SE(nn.Module):
    """Squeeze and excitation, without biases.

    The counts of the SE-ResNets in the paper's tables are those without biases;
    mmdet's ``SELayer`` has biases.

    Args:
        channels: C.
        ratio: By how much the squeezed vector is narrower.
    """

    def __init__(self, channels: int, ratio: int = 16) -> None:
        super().__init__()
        narrow = squeezed(channels, ratio)
        self.fc = nn.Sequential(
            nn.Linear(channels, narrow, bias=False), nn.ReLU(inplace=True),
            nn.Linear(narrow, channels, bias=False), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of ``x``, of shape (N, C, H, W)."""
        scale = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return x * scale[..., None, None]


class ECA(nn.Module):
    """Efficient channel attention: a 1-d convolution along the channels.

    Args:
        channels: C.
        kernel_size: Odd. By default it follows C by ECA-Net's rule, which
            gives 5, 5, 5, 7 for the stages of a bottleneck ResNet.
    """

    def __init__(self, channels: int, kernel_size: Optional[int] = None) -> None:
        super().__init__()
        if kernel_size is None:
            nearest = int((math.log2(channels) + 1) / 2)
            kernel_size = nearest if nearest % 2 else nearest + 1
        check_positive_int('attention.kernel_size', kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f'attention.kernel_size={kernel_size!r} must be odd')
        self.conv = nn.Conv1d(1, 1, kernel_size, padding=kernel_size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of ``x``, of shape (N, C, H, W)."""
        pooled = F.adaptive_avg_pool2d(x, 1).flatten(2)
        scale = torch.sigmoid(self.conv(pooled.transpose(1, 2)).transpose(1, 2))
        return x * scale[..., None]


class CBAM(nn.Module):
    """Convolutional block attention: of the channels, then of the pixels.

    The channels' part is SE's, of the mean and of the maximum; like SE's here
    it has no biases, which gives the counts of the paper's tables.

    Args:
        channels: C.
        ratio: By how much the squeezed vector is narrower.
        kernel_size: Of the convolution that weighs the pixels; odd.
    """

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
        ratio: By how much the transform's bottleneck is narrower.
    """

    def __init__(self, channels: int, ratio: int = 16) -> None:
        squeezed(channels, ratio)
        super().__init__(channels, 1 / ratio)

    def init_weights(self) -> None:
        """Start as the identity, whatever a backbone's rule for convolutions is."""
        self.reset_parameters()


class NL(NonLocal2d):
    """The non-local block in its embedded Gaussian form, mmcv's.

    Args:
        channels: C.
        ratio: By how much the embeddings are narrower.
    """

    def __init__(self, channels: int, ratio: int = 2) -> None:
        squeezed(channels, ratio)
        super().__init__(channels, reduction=ratio)


ATTENTIONS = dict(SE=SE, ECA=ECA, CBAM=CBAM, GC=GC, NL=NL)
PLACEMENT = ('stages', 'blocks')


def attentions_of_stage(cfg: Optional[Dict[str, Any]], stage: int, num_stages: int,
                        num_blocks: int) -> Sequence[Optional[Dict[str, Any]]]:
    """The attention of each block of a stage, or None where it has none.

    Args:
        cfg: ``attention=dict(type=..., ...)`` of a backbone. Its ``stages``, a
            True or False for each as in mmdet's plugins, and its ``blocks``,
            positions in a stage (-1 is the last), say where it stands; by
            default in every block.
        stage: Counted from 0.
        num_stages: Of the backbone.
        num_blocks: Of the stage.
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
    """Stop on an ``attention=dict(type=..., ...)`` that cannot be built."""
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
