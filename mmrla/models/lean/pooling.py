"""Max pooling of the stem, fast on a CPU."""
from typing import Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .conv_norm import has_hooks, is_eager


class MaxPool(Function):
    """Max pooling on a CPU, which is fast in channels_last.

    Where the maxima are is all that it keeps.
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
        x = grad.new_empty(()).expand(ctx.shape)  # only its shape is asked for
        grad_x = torch.ops.aten.max_pool2d_with_indices_backward(
            grad.contiguous(), x, *ctx.geometry, *ctx.saved_tensors)
        return grad_x, *[None] * len(ctx.geometry)


def pooling_layout(images: Tensor) -> Tensor:
    """Images in the layout in which a CPU's stem infers fastest."""
    if images.device.type != 'cpu' or not is_eager(images):
        return images
    return images.contiguous(memory_format=torch.channels_last)


def max_pool(pool: nn.Module, x: Tensor) -> Tensor:
    """``pool(x)``, of shape (N, C, H', W')."""
    if not _is_max_pool(pool, x) or x.device.type != 'cpu' or not x.is_contiguous():
        return pool(x)
    return MaxPool.apply(x, pool.kernel_size, pool.stride, pool.padding, pool.dilation,
                         pool.ceil_mode)


def relu_max_pool(relu: nn.ReLU, pool: nn.Module, x: Tensor) -> Tensor:
    """``pool(relu(x))``: the two commute, and ReLU has less to do behind the pooling."""
    if not _is_max_pool(pool, x) or has_hooks(relu):
        return pool(relu(x))
    return relu(max_pool(pool, x))


def _is_max_pool(pool: nn.Module, x: Tensor) -> bool:
    """Whether max pooling is all that a module does, and nobody watches it."""
    return type(pool) is nn.MaxPool2d and not has_hooks(pool) and is_eager(x)
