"""One residual block with the hidden path beside it, in a network that knows nothing of it.

- A forward hook on a block's entry adds ``W_h h`` to the output of that
  convolution: ``conv(Concat(x, h)) = W_x x + W_h h``.
- A forward hook on the module that returns y compresses y for the update.
- A :class:`HiddenStep` takes the place of the block's ``forward``. It calls the
  original between reading and updating h.

h lives in a :class:`Pass`, for the time of one call of the network.
"""
import threading
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmrla.models.residual_blocks import ResidualBlock
from mmrla.models.rla import RLAStage, State

Size = Tuple[int, int]


class Pass(threading.local):
    """What one forward pass carries from block to block, in each thread.

    Attributes:
        running: Whether the network is running.
        state: The hidden state, None before the first block.
        step: The step whose block is running.
        term: ``W_h h`` for that block's entry, until it is added.
        new: What that block contributes to the update.
    """
    running: bool = False
    state: Optional[State] = None
    step: Optional['HiddenStep'] = None
    term: Optional[Tensor] = None
    new: Optional[Tensor] = None

    def __reduce__(self) -> tuple:
        return Pass, ()  # a copy of a network is not running


def pool_to(h: Tensor, stride: Size, size: Size) -> Tensor:
    """Bring h to a lower resolution.

    Args:
        h: Shape (N, k, H, W).
        stride: By which H and W are divided.
        size: (H', W'), both rounded up or down. The last window of a side that
            is rounded up averages the pixels that it has.
    """
    if tuple(stride) != (1, 1):
        h = F.avg_pool2d(h, stride, stride, ceil_mode=True, count_include_pad=False)
    return h if h.shape[2:] == size else h[:, :, :size[0], :size[1]]


def stride_between(before: Size, after: Size) -> Size:
    """By how much the resolution falls."""
    return tuple(max(1, early // late) for early, late in zip(before, after, strict=True))


class HiddenStep:
    """One residual block of both paths, in place of the block's ``forward``.

    Args:
        module: The block.
        block: Its parts.
        stage: The hidden path along the block's stage.
        t: The block's position in the stage, from 0.
        before: Stride between the previous block's output and the block's input.
        current: The network's pass.

    Attributes:
        recompute: Whether activations are recomputed in backward.
    """
    recompute = False

    def __init__(self, module: nn.Module, block: ResidualBlock, stage: RLAStage, t: int,
                 before: Size, current: Pass) -> None:
        self.module, self.block, self.stage, self.t = module, block, stage, t
        self.before, self.after = before, stride_between(block.in_size, block.out_size)
        self.current = current
        self.updates = t < len(stage.norms)
        self.watched = self._watched()
        self.hooked: Dict[str, nn.Module] = {}
        module.forward = self
        self.attach()

    def is_related(self, name: str) -> bool:
        """Whether a module of the network is the block, around it or inside it."""
        return (name in ('', self.block.name) or self.block.name.startswith(f'{name}.')
                or name.startswith(f'{self.block.name}.'))

    def _watched(self) -> Optional[str]:
        """The part that is compressed as soon as it is known; None for x' alone."""
        source = self.stage.variant.source
        if not self.updates or source == 'out':
            return None
        return 'branch' if source == 'residual' and self.block.branch is not None else 'shortcut'

    def attach(self) -> None:
        """Put the hooks on the block's parts, also on those replaced since."""
        hooks = {self.block.entry: self.add_term} if self.stage.config.exchange else {}
        name = getattr(self.block, self.watched) if self.watched else ''
        if name:
            hooks[name] = self.compress
        for name, hook in hooks.items():
            part = self.module.get_submodule(name)
            if self.hooked.get(name) is not part:
                part.register_forward_hook(hook)
                self.hooked[name] = part

    def add_term(self, module: nn.Module, args: tuple, out: Tensor) -> Optional[Tensor]:
        """Hook of the entry: ``W_x x + W_h h``."""
        term = self.current.term
        if self.current.step is not self or term is None:
            return None
        self.current.term = None
        # Another hook may hold the convolution's output.
        return out.add_(term) if len(module._forward_hooks) == 1 else out + term

    def compress(self, module: nn.Module, args: tuple, out: Tensor) -> Optional[Tensor]:
        """Hook of the branch or the shortcut: compress what it returned."""
        if self.current.step is not self:
            return None
        self.current.new = self._compressed(out)
        # The original would not survive an addition in place until backward.
        return out.clone() if self.watched in self.block.changed and out.requires_grad else None

    def _compressed(self, feature: Tensor) -> Tensor:
        return self.stage.of_block(self.stage.compress, self.t)(feature)

    def __call__(self, x: Tensor, *args, **kwargs) -> Tensor:
        """Run the block, with the hidden path if the network is running."""
        current = self.current
        if not current.running:
            self._check_not_recomputed()
            return self._forward(x, *args, **kwargs)
        state = self.stage.initial_state(x) if current.state is None else current.state
        if self.recompute and torch.is_grad_enabled():
            x, current.state = checkpoint(
                self.step, x, state, *args, use_reentrant=False, **kwargs)
        else:
            x, current.state = self.step(x, state, *args, **kwargs)
        return x

    def _forward(self, x: Tensor, *args, **kwargs) -> Tensor:
        """The block's own forward."""
        return type(self.module).forward(self.module, x, *args, **kwargs)

    def _check_not_recomputed(self) -> None:
        """Stop where a recomputation would leave out the hidden path."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                f'{self.block.name} is recomputed in backward by a checkpoint around it, which '
                'does not keep the hidden state; checkpoint the whole backbone, or set with_cp '
                '(timm: set_grad_checkpointing) of the network inside WithRLA and call train(): '
                'each block is then recomputed with its h')

    def step(self, x: Tensor, state: State, *args, **kwargs) -> Tuple[Tensor, State]:
        """One block of both paths: ``(x, h)`` becomes ``(x', h')``.

        Args:
            x: Shape (N, C_in, H, W).
            state: h, and c of a ConvLSTM, each of shape (N, k, H0, W0).
            *args: Further arguments of the block.
            **kwargs: As ``args``.

        Returns:
            tuple[Tensor, tuple[Tensor]]: x' of shape (N, C, H', W') and the new
            state.
        """
        stage, current = self.stage, self.current
        state = tuple(pool_to(part, self.before, x.shape[2:]) for part in state)
        try:
            current.step = self
            if stage.config.exchange:
                current.term = stage.readers[self.t](state[0])
            if self.watched and getattr(self.block, self.watched) == '':
                current.new = self._compressed(x)
            out = self._forward(x, *args, **kwargs)
            if current.term is not None:
                self._stop_without(self.block.entry)
            if self.updates:
                state = self._updated(state, self._new(out))
        finally:
            current.step = current.term = current.new = None
        return out, state

    def _new(self, out: Tensor) -> Tensor:
        """``g1`` of what the variant takes from the block."""
        if self.watched is None:
            return self._compressed(out)
        new = self.current.new
        if new is None:
            self._stop_without(getattr(self.block, self.watched))
        if self.watched == 'shortcut' and self.stage.variant.source == 'residual':
            return self._compressed(out) - new  # W y = W (y + shortcut) - W shortcut
        return new

    def _updated(self, state: State, new: Tensor) -> State:
        state = tuple(pool_to(part, self.after, new.shape[2:]) for part in state)
        return self.stage.update(self.t, state, new)

    def _stop_without(self, name: str) -> None:
        raise RuntimeError(
            f'{self.block.name} ran without calling its {name}, where the hidden path joins it. '
            'Something bypasses that module, such as a merged convolution and norm '
            '(efficient_conv_bn_eval); turn that off for this backbone')
