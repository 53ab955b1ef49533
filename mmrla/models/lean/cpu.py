"""The layout of the feature maps in inference on a CPU.

oneDNN computes 1x1 convolutions of large maps faster in channels_last than in the default
layout.
"""
import torch
from torch import Tensor

from .conditions import may_save_memory


def is_inference_on_cpu(x: Tensor) -> bool:
    """Whether operators run one by one on a CPU in float32, without gradients."""
    return (may_save_memory(x) and x.device.type == 'cpu' and x.dtype == torch.float32
            and not torch.is_grad_enabled() and not torch.is_autocast_enabled('cpu'))


def is_channels_last(x: Tensor) -> bool:
    """Whether a tensor is in channels_last, and not in the default layout as well."""
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def in_layout_of(images: Tensor, x: Tensor) -> Tensor:
    """x in the default layout unless the images are in channels_last, of shape (N, C, H, W).

    mmcv's operators, such as RoIAlign, read any other layout as if it were the default one.
    torch transposes matrices by blocks, which is up to four times as fast as its general copy.
    """
    if x.is_contiguous() or is_channels_last(images):
        return x
    if not is_inference_on_cpu(x):
        return x.contiguous()
    out = x.new_empty(x.shape)
    for image, pixels in zip(out.flatten(2), x.permute(0, 2, 3, 1).flatten(1, 2), strict=True):
        image.copy_(pixels.T)
    return out
