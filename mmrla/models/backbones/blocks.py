"""Residual blocks and stages that can run with a hidden path."""
from typing import Callable, List, Optional, Tuple

import torch
from mmengine.model import BaseModule, Sequential
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmrla.models.lean.conv_norm import Term
from mmrla.models.rla import BlockFeatures, Exchange

Step = Callable[[int, nn.Module, Tensor], Tensor]


class RLABlock(BaseModule):
    """A residual block that may exchange information with a hidden path.

    A subclass implements :meth:`features` and :meth:`joint`.

    Attributes:
        forms: The forms in which the block computes its layers, a key of
            :data:`~mmrla.models.lean.forms.FORMS`.
        with_cp: Recompute the block in backward to save memory. With a hidden path the
            backbone recomputes the whole step of both paths instead.
    """
    forms = 'plain'
    with_cp = False

    def gated_norm(self) -> Optional[nn.Module]:
        """The norm whose output the attention gates; None if other layers are in between."""
        return None

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block.

        Args:
            x: Shape (N, C_in, H, W).
            term: The term that the hidden path adds to the output of
                :meth:`joint`'s convolution; None without a hidden path.
        """
        raise NotImplementedError

    def joint(self) -> Tuple[nn.Module, nn.Module]:
        """The convolution to whose output the term is added, and the norm after it."""
        raise NotImplementedError

    def branch(self) -> List[Tuple[nn.Module, nn.Module]]:
        """The convolutions of the residual branch, each with its norm.

        Returns:
            list[tuple[nn.Module, nn.Module]]: Empty if the branch has other layers than
            these, ReLUs between them and the :meth:`tail`.
        """
        return []

    def tail(self) -> List[nn.Module]:
        """The layers of the residual branch after its last norm."""
        return []

    def forward(self, x: Tensor, hidden: Optional[Exchange] = None) -> Tensor:
        """Run the block.

        Args:
            x: Shape (N, C_in, H, W).
            hidden: Its term is read and its features are set; None without a hidden
                path.

        Returns:
            Tensor: x', of shape (N, C, H', W').
        """
        if hidden is None:
            return self._forward_alone(x)
        hidden.features = self.features(x, hidden.term)
        return hidden.features.out

    def _forward_alone(self, x: Tensor) -> Tensor:
        """x' without a hidden path, with activation checkpointing if ``with_cp``."""
        def out(x: Tensor) -> Tensor:
            return self.features(x, None).out

        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(out, x, use_reentrant=False)
        return out(x)


class _RunsSteps:
    """The forward pass of a stage, for torch's and mmengine's ``Sequential``."""

    def forward(self, x: Tensor, step: Optional[Step] = None) -> Tensor:
        """Run the blocks one after another.

        Args:
            x: Shape (N, C_in, H, W).
            step: Runs block t, ``step(t, block, x)``. By default the block is called
                without a hidden path.

        Returns:
            Tensor: Shape (N, C, H', W').
        """
        for t, block in enumerate(self):
            x = block(x) if step is None else step(t, block, x)
        return x


class Stage(_RunsSteps, Sequential):
    """The residual blocks of a stage."""


class UninitialisedStage(_RunsSteps, nn.Sequential):
    """The residual blocks of a stage, which mmengine's initialisation does not enter."""
