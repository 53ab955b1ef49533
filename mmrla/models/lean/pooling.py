"""Max pooling of the stem, fast on a CPU."""
from typing import Callable, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .conditions import has_hooks
from .cpu import is_inference_on_cpu


class MaxPool(Function):
    """Max pooling on a CPU, computed in channels_last, where it is fast.

    It saves only the positions of the maxima for backward.
    """

    @staticmethod
    def forward(ctx, x: Tensor, *geometry: Union[int, bool]) -> Tensor:
        """(N, C, H, W) to (N, C, H', W'), both contiguous."""
        out, indices = torch.ops.aten.max_pool2d_with_indices(
            x.contiguous(memory_format=torch.channels_last), *geometry)
        ctx.shape, ctx.geometry = x.shape, geometry
        ctx.save_for_backward(indices.contiguous())
        return out.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        """The gradient of x."""
        x = grad.new_empty(()).expand(ctx.shape)  # only its shape is used
        grad_x = torch.ops.aten.max_pool2d_with_indices_backward(
            grad.contiguous(), x, *ctx.geometry, *ctx.saved_tensors)
        return grad_x, *[None] * len(ctx.geometry)


def in_pooling_layout(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``layers(x)`` of a stem that ends in max pooling.

    On a CPU, a stem in eval mode is fastest in channels_last. In inference the rest of
    the network is too, else the output has the layout of the input.
    """
    if x.device.type != 'cpu' or not x.is_contiguous():
        return layers(x)
    out = layers(x.contiguous(memory_format=torch.channels_last))
    return out if is_inference_on_cpu(x) else out.contiguous()


def max_pool(pool: nn.Module, x: Tensor) -> Tensor:
    """``pool(x)``, of shape (N, C, H', W')."""
    if not _is_max_pool(pool) or x.device.type != 'cpu' or not x.is_contiguous():
        return pool(x)
    return MaxPool.apply(x, pool.kernel_size, pool.stride, pool.padding, pool.dilation,
                         pool.ceil_mode)


def relu_max_pool(relu: nn.Module, pool: nn.Module, x: Tensor) -> Tensor:
    """``pool(relu(x))``. The two commute, and ReLU is cheaper after the pooling."""
    if not _is_max_pool(pool) or has_hooks(relu):
        return pool(relu(x))
    return relu(max_pool(pool, x))


def _is_max_pool(pool: nn.Module) -> bool:
    """Whether a module is torch's max pooling without hooks."""
    return type(pool) is nn.MaxPool2d and not has_hooks(pool)
