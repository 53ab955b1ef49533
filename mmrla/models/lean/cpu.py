"""What makes inference fast on a CPU: the layout of the feature maps, and larger operators.

oneDNN computes 1x1 convolutions of large maps several times as fast in channels_last as in the
default layout, and adds the shortcut and applies ReLU before it writes the output.
"""
import torch
from torch import Tensor, nn

from .conditions import has_hooks, is_plain_conv, may_save_memory


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


def is_one_operator(conv: nn.Module, r: Tensor, shortcut: Tensor, relu: nn.Module) -> bool:
    """Whether :func:`conv_add_relu` computes ``relu(conv(r) + shortcut)``, and is faster."""
    return (is_inference_on_cpu(r) and torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled and not isinstance(conv.padding, str)
            and r.is_contiguous(memory_format=torch.channels_last)
            and shortcut.is_contiguous(memory_format=torch.channels_last)
            and is_plain_conv(conv) and type(relu) is nn.ReLU and not has_hooks(relu))


def conv_add_relu(conv: nn.Conv2d, r: Tensor, shortcut: Tensor) -> Tensor:
    """``relu(conv(r) + shortcut)`` as one operator of oneDNN.

    Args:
        conv: A convolution from w to C channels.
        r: Shape (N, w, H, W).
        shortcut: Shape (N, C, H', W').

    Returns:
        Tensor: Shape (N, C, H', W'), in channels_last.
    """
    return torch.ops.mkldnn._convolution_pointwise(
        r, shortcut, conv.weight, conv.bias, conv.padding, conv.stride, conv.dilation,
        conv.groups, 'add', 1.0, 'relu', [], None)
