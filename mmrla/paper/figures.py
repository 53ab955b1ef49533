"""Measurements on trained networks: shared weights (figure 2) and h along the depth."""
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn

from mmrla.models.backbones.blocks import RLABlock
from mmrla.models.backbones.densenet import SharedConv1
from mmrla.models.rla import RLAStage, State, last_convolution


def shared_weight_norms(model: nn.Module) -> List[np.ndarray]:
    """Return the L1 norms of shared 1x1 convolutions (figure 2).

    Args:
        model: A network with a :class:`~mmrla.models.CifarDenseNet` that shares
            its 1x1 convolutions.

    Returns:
        list[np.ndarray]: For each dense block the norms of ``Conv1_1``,
        ``Conv1_2``, ..., by lag or by ordinal number.
    """
    shared = [module for module in model.modules() if isinstance(module, SharedConv1)]
    if not shared:
        raise ValueError(f'{type(model).__name__} has no shared 1x1 convolutions; use a '
                         "CifarDenseNet with sharing='lag' or 'ordinal'")
    return [module.weights().detach().abs().sum((1, 2)).cpu().numpy() for module in shared]


class ExponentialFit(NamedTuple):
    """The curve ``scale * exp(-rate * x)`` and the share of the variance it explains."""
    scale: float
    rate: float
    r_squared: float

    def at(self, x: np.ndarray) -> np.ndarray:
        """Return the values of the curve."""
        return self.scale * np.exp(-self.rate * x)


def fit_exponential(y: np.ndarray) -> ExponentialFit:
    """Fit an exponential to y at x = 1, 2, ... by least squares (appendix A.2).

    The best scale has a closed form for each rate, so that only the rate is
    searched, from -2 (growth) to 5 (the second value is almost zero).
    """
    y = np.asarray(y, dtype=np.float64)
    if y.size < 3 or not np.ptp(y):
        raise ValueError(f'cannot fit an exponential to {y.tolist()}: at least 3 values that '
                         'differ are needed')
    x = np.arange(1, y.size + 1)
    low, high = -2.0, 5.0
    for _ in range(6):  # each search is 500 times finer than the previous one
        rates = np.linspace(low, high, 1001)
        # Relative to the larger end, so that no exponential overflows.
        curves = np.exp(-rates[:, None] * x + np.maximum(rates, rates * y.size)[:, None])
        scales = curves @ y / (curves * curves).sum(1)
        errors = ((scales[:, None] * curves - y)**2).sum(1)
        best = int(errors.argmin())
        low, high = rates[max(best - 1, 0)], rates[min(best + 1, 1000)]
    rate = rates[best]
    scale = scales[best] * np.exp(max(rate, rate * y.size))
    return ExponentialFit(scale, rate, 1 - errors[best] / ((y - y.mean())**2).sum())


class Step(NamedTuple):
    """The record of one block of a backbone.

    Attributes:
        out: The output, (N, C, H, W).
        hidden: h after the block, (N, k, H, W); None if the block does not update h.
        share: The share of the L1 norm of the first convolution's weight that
            reads h; None if the block does not read h.
        even_share: The share if all input channels had equal weights.
    """
    out: Tensor
    hidden: Optional[Tensor] = None
    share: Optional[float] = None
    even_share: Optional[float] = None


def reading_shares(stage: RLAStage, t: int, block: nn.Module) -> Dict[str, float]:
    """Return ``share`` and ``even_share`` of a block; see :class:`Step`."""
    if not stage.config.exchange:
        return {}
    reader = last_convolution(stage.readers[t])
    # conv(concat(x, h)) is split in two convolutions of equal output shape.
    main = next(m for m in block.modules() if isinstance(m, nn.Conv2d) and m.groups == 1
                and (m.out_channels, m.kernel_size) == (reader.out_channels, reader.kernel_size))
    ours, theirs = (float(conv.weight.detach().abs().sum()) for conv in (reader, main))
    sizes = reader.weight.numel(), main.weight.numel()
    return dict(share=ours / (ours + theirs), even_share=sizes[0] / sum(sizes))


@contextmanager
def _recorded(backbone: nn.Module, steps: List[Step]) -> Iterator[None]:
    """Record the blocks and the hidden path while the backbone runs."""
    def keep(module: nn.Module, inputs: tuple, out) -> None:
        if isinstance(module, RLABlock):
            steps.append(Step(out))

    def with_hidden(stage: RLAStage):
        def step(t: int, block: nn.Module, x: Tensor, state: State):
            out, new = RLAStage.step(stage, t, block, x, state)
            hidden = new[0] if new is not state else None
            steps[-1] = Step(out, hidden, **reading_shares(stage, t, block))
            return out, new
        return step

    handles = [module.register_forward_hook(keep) for module in backbone.modules()]
    stages = [module for module in backbone.modules() if isinstance(module, RLAStage)]
    for stage in stages:
        stage.step = with_hidden(stage)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for stage in stages:
            del stage.step


@torch.no_grad()
def run_along_depth(backbone: nn.Module, images: Tensor) -> List[Step]:
    """Run a backbone and record each of its blocks.

    Args:
        backbone: A residual backbone of mmrla, with or without RLA, in eval mode.
        images: Normalized images, (N, 3, H, W).
    """
    steps: List[Step] = []
    with _recorded(backbone, steps):
        backbone(images)
    if not steps:
        raise ValueError(f'{type(backbone).__name__} has no residual blocks that can be recorded')
    return steps


@contextmanager
def hidden_state_unread(backbone: nn.Module) -> Iterator[None]:
    """Let the blocks of a backbone read h = 0, as in the plain network."""
    handles = [reader.register_forward_hook(lambda m, inputs, out: torch.zeros_like(out))
               for module in backbone.modules() if isinstance(module, RLAStage)
               for reader in module.readers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
