"""A batch norm in training mode that tells its statistics, and is fast on a CPU."""
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """(C,) to (C, 1, 1), of another tensor's dtype."""
    return values.view(-1, 1, 1).to(like.dtype)


class _Normed(NamedTuple):
    """What torch's batch norm gives, and needs again in backward."""
    y: Tensor
    mean: Tensor
    invstd: Tensor
    reserve: Tensor
    backend: int


def has_fast_statistics(norm: _BatchNorm, z: Tensor) -> bool:
    """Whether :func:`_batch_norm_of_rows` is faster than torch's own.

    That is on a CPU, from where its many small steps take less time than they
    save.
    """
    return (z.device.type == 'cpu' and z.numel() >= 2**18 and z.is_contiguous()
            and z.dtype == norm.weight.dtype)


def _batch_norm_of_rows(z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm) -> _Normed:
    """``norm(z)`` with the statistics of the batch.

    torch takes them value by value; sums along rows are vectorised. The squares
    are those of ``z - mean``, so that no digits cancel.
    """
    n = z.numel() // z.shape[1]
    mean = z.mean((0, 2, 3))
    y = z - per_channel(mean, z)
    squares = torch.linalg.vector_norm(y.flatten(2), dim=2).square_().sum(0)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(squares / (n - 1), norm.momentum)
    invstd = torch.rsqrt(squares / n + norm.eps)
    y.mul_(per_channel(weight * invstd, z)).add_(per_channel(bias, z))
    return _Normed(y, mean, invstd, z.new_empty(0, dtype=torch.uint8), 0)


def _batch_norm(z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm) -> _Normed:
    """``norm(z)`` with the statistics of the batch."""
    norm.num_batches_tracked.add_(1)
    if has_fast_statistics(norm, z):
        return _batch_norm_of_rows(z, weight, bias, norm)
    return _Normed(*torch._batch_norm_impl_index(
        z, weight, bias, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps,
        torch.backends.cudnn.enabled))


class BatchNormStatistics(Function):
    r"""A training batch norm, and its statistics as differentiable outputs.

    ``y = weight (z - m) s + bias``, with m the mean of the n values of a channel
    and ``s = (variance + eps)**-0.5``. A gradient that reaches m and s adds ::

        dL/dz_i = (dL/dm - dL/ds s^3 (z_i - m)) / n

    to that of the batch norm, which is torch's own.
    """

    @staticmethod
    def forward(ctx, z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm
                ) -> Tuple[Tensor, Tensor, Tensor]:
        """(N, C, H, W) to the same shape, and two of shape (C,)."""
        y, mean, invstd, reserve, ctx.backend = _batch_norm(z, weight, bias, norm)
        ctx.save_for_backward(z, weight, norm.running_mean, norm.running_var, mean, invstd,
                              reserve)
        ctx.eps = norm.eps
        ctx.set_materialize_grads(False)
        return y, mean, invstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y: Optional[Tensor], grad_mean: Optional[Tensor],
                 grad_invstd: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        """The gradients of z, weight and bias."""
        z, weight, running_mean, running_var, mean, invstd, reserve = ctx.saved_tensors
        grads = (None, None, None)
        if grad_y is not None:
            grads = torch.ops.aten._batch_norm_impl_index_backward(
                ctx.backend, z, grad_y, weight, running_mean, running_var, mean, invstd, True,
                ctx.eps, list(ctx.needs_input_grad[:3]), reserve)
        grad_z, grad_weight, grad_bias = grads
        if (grad_mean is not None or grad_invstd is not None) and ctx.needs_input_grad[0]:
            n = z.numel() // z.shape[1]
            slope = torch.zeros_like(mean) if grad_invstd is None else -grad_invstd * invstd**3 / n
            offset = -slope * mean if grad_mean is None else grad_mean / n - slope * mean
            slope, offset = (per_channel(value, z) for value in (slope, offset))
            grad_z = offset.expand_as(z).clone() if grad_z is None else grad_z.add_(offset)
            grad_z.addcmul_(z, slope)
        return grad_z, grad_weight, grad_bias, None


def learn(norm: _BatchNorm, z: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """``norm(z)`` of a training norm, with the mean and 1 / standard deviation."""
    return BatchNormStatistics.apply(z, norm.weight, norm.bias, norm)
