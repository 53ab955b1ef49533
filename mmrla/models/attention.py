"""Channel attention on a residual branch, placed before the residual addition."""
import math
from typing import Any, Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import check_choice, check_positive_int


class SE(nn.Module):
    """Squeeze and excitation, without biases as in the paper's SE-ResNets.

    mmdet's ``SELayer`` has biases, which the published counts do not.

    Args:
        channels: C.
        ratio: By how much the squeezed vector is narrower.
    """

    def __init__(self, channels: int, ratio: int = 16) -> None:
        super().__init__()
        check_positive_int('attention.ratio', ratio)
        if channels < ratio:
            raise ValueError(f'attention.ratio={ratio!r} squeezes {channels} channels to none; '
                             f'take a ratio of at most {channels}')
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // ratio, bias=False), nn.ReLU(inplace=True),
            nn.Linear(channels // ratio, channels, bias=False), nn.Sigmoid())

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


ATTENTIONS = dict(SE=SE, ECA=ECA)


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
