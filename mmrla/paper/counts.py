"""Counting parameters and FLOPs by the paper's rules.

The paper's "M" is 2**20 and its "G" is 2**30. Its FLOPs are the multiply-adds of
convolutions and linear layers, two operations per input element of a batch norm,
the input and output elements of a global pooling and the output elements of an
average pooling. Activations, additions, concatenation, max pooling and biases do
not count. At 224x224 and batch size 1 these rules give the printed figures; the
figures of MobileNetV2 do not include the last pooling (0.06 M).
"""
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmrla.models.lean.conv_norm import plain_path

MEGA = 2**20
GIGA = 2**30


def count_parameters(model: nn.Module) -> int:
    """Count the parameters of a model; a shared parameter counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_statistics(model: nn.Module) -> int:
    """Count the running means and variances of the norms, which Keras includes."""
    return sum(buffer.numel() for name, buffer in model.named_buffers()
               if name.endswith(('running_mean', 'running_var')))


def _convolution(output: Tensor, x: Tensor, weight: Tensor, *_, **__) -> int:
    return output.numel() * weight[0].numel()


def _linear(output: Tensor, x: Tensor, weight: Tensor, *_, **__) -> int:
    return output.numel() * weight.shape[1]


def _norm(output: Tensor, x: Tensor, *_, **__) -> int:
    return 2 * x.numel()


def _global_pooling(output: Tensor, x: Tensor, *_, **__) -> int:
    return x.numel() + output.numel()


def _average_pooling(output: Tensor, *_, **__) -> int:
    return output.numel()


_COSTS: Dict[Callable, Callable[..., int]] = {
    F.conv2d: _convolution,
    F.conv1d: _convolution,
    F.linear: _linear,
    F.batch_norm: _norm,
    F.adaptive_avg_pool2d: _global_pooling,
    F.avg_pool2d: _average_pooling,
}


class PaperFlops(TorchFunctionMode):
    """Count the FLOPs of all functional calls while the mode is active.

    Example:
        >>> import torch
        >>> from mmrla.paper.counts import PaperFlops
        >>> with PaperFlops() as flops:
        ...     _ = torch.nn.Conv2d(3, 8, 1)(torch.zeros(1, 3, 4, 4))
        >>> flops.total
        384
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, function: Callable, types: List[type], args: Tuple = (),
                           kwargs: Any = None) -> Any:
        """Call a function and add its FLOPs."""
        output = function(*args, **(kwargs or {}))
        if function in _COSTS:
            self.total += _COSTS[function](output, *args, **(kwargs or {}))
        return output


def count_flops(model: nn.Module, size: Tuple[int, int] = (224, 224)) -> int:
    """Count the FLOPs of a model for one image by the paper's rules.

    Args:
        model: A model that takes images of shape (1, 3, H, W), in eval mode. On
            the meta device the count needs neither memory nor computation.
        size: Height and width.
    """
    with plain_path(), PaperFlops() as flops, torch.no_grad():
        model(torch.zeros(1, 3, *size, device=next(model.parameters()).device))
    return flops.total
