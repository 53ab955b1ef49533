"""A batch norm in training mode that also returns its statistics, and is fast on a CPU."""
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

Normed = Tuple[Tensor, Tensor, Tensor]


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """(C,) to (C, 1, 1), with another tensor's dtype."""
    return values.view(-1, 1, 1).to(like.dtype)


def has_fast_statistics(norm: _BatchNorm, z: Tensor) -> bool:
    """Whether :func:`_batch_norm_of_rows` is faster than torch's batch norm.

    That is the case for large tensors on a CPU: there the vectorised sums save more
    time than the additional operators cost.
    """
    return (z.device.type == 'cpu' and z.numel() >= 2**18 and z.is_contiguous()
            and z.dtype == norm.weight.dtype)


def _batch_norm_of_rows(z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm) -> Normed:
    """``norm(z)`` with the statistics of the batch, summed along rows.

    torch accumulates value by value; sums along rows are vectorised. The squares are
    those of ``z - mean``, which avoids cancellation.
    """
    n = z.numel() // z.shape[1]
    mean = z.mean((0, 2, 3))
    y = z - per_channel(mean, z)
    squares = torch.linalg.vector_norm(y.flatten(2), dim=2).square_().sum(0)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(squares / (n - 1), norm.momentum)
    invstd = torch.rsqrt(squares / n + norm.eps)
    y.mul_(per_channel(weight * invstd, z)).add_(per_channel(bias, z))
    return y, mean, invstd


def _batch_norm(z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm) -> Normed:
    """``norm(z)`` with the statistics of the batch, the mean and 1 / standard deviation."""
    norm.num_batches_tracked.add_(1)
    if has_fast_statistics(norm, z):
        return _batch_norm_of_rows(z, weight, bias, norm)
    return torch.native_batch_norm(
        z, weight, bias, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps)


class BatchNormStatistics(Function):
    r"""A training batch norm, and its statistics as differentiable outputs.

    ``y = weight (z - m) s + bias``, where m is the mean of the n values of a channel
    and ``s = (variance + eps)**-0.5``. A gradient that reaches m and s adds ::

        dL/dz_i = (dL/dm - dL/ds s^3 (z_i - m)) / n

    to the gradient of the batch norm, which torch computes.
    """

    @staticmethod
    def forward(ctx, z: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm) -> Normed:
        """(N, C, H, W) to the same shape, and two of shape (C,)."""
        y, mean, invstd = _batch_norm(z, weight, bias, norm)
        # Backward does not need the running statistics: another forward pass may change
        # them before backward runs.
        ctx.save_for_backward(z, weight, mean, invstd)
        ctx.eps = norm.eps
        ctx.set_materialize_grads(False)
        return y, mean, invstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y: Optional[Tensor], grad_mean: Optional[Tensor],
                 grad_invstd: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        """The gradients of z, weight and bias."""
        z, weight, mean, invstd = ctx.saved_tensors
        grads = (None, None, None)
        if grad_y is not None:
            grads = torch.ops.aten.native_batch_norm_backward(
                grad_y, z, weight, None, None, mean, invstd, True, ctx.eps,
                list(ctx.needs_input_grad[:3]))
        grad_z, grad_weight, grad_bias = grads
        if (grad_mean is not None or grad_invstd is not None) and ctx.needs_input_grad[0]:
            n = z.numel() // z.shape[1]
            slope = torch.zeros_like(mean) if grad_invstd is None else -grad_invstd * invstd**3 / n
            offset = -slope * mean if grad_mean is None else grad_mean / n - slope * mean
            slope, offset = (per_channel(value, z) for value in (slope, offset))
            grad_z = offset.expand_as(z).clone() if grad_z is None else grad_z.add_(offset)
            grad_z.addcmul_(z, slope)
        return grad_z, grad_weight, grad_bias, None


def norm_with_statistics(norm: _BatchNorm, z: Tensor) -> Normed:
    """``norm(z)`` of a norm in training mode, its mean and 1 / standard deviation."""
    return BatchNormStatistics.apply(z, norm.weight, norm.bias, norm)
