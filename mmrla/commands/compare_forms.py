"""Compare the memory-saving and the plain forms on the user's own device.

``mmrla doctor`` runs :func:`compare_forms`. The tests compare the forms on a CPU for every
network; a GPU has other kernels, and its users can check them in half a minute.
"""
import contextlib
import json
from typing import Any, Dict, List

import torch
from torch import Tensor, nn

from mmrla.models.backbones.resnet import RLAResNet
from mmrla.models.lean.conditions import plain_path

from .measurements import saved_for_backward, seconds

CASES = {
    'RLA, norm_eval': dict(norm_eval=True),
    'RLA, norms train': dict(norm_eval=False),
    'RLA and ECA, norm_eval': dict(norm_eval=True, attention=dict(type='ECA')),
}
# Sums of float64 in another order differ by less.
TOLERANCE = 1e-8


def _network(device: str, dtype: torch.dtype, **kwargs: Any) -> nn.Module:
    """A ResNet-50 whose branches do not start at zero, in training mode."""
    net = RLAResNet(50, rla=dict(channels=32), **kwargs)
    for block in (block for stage in net.stages_with_blocks() for block in stage):
        nn.init.constant_(block.norm3.weight, 0.2)
    return net.to(device, dtype).train()


def _step(net: nn.Module, images: Tensor) -> Dict[str, Tensor]:
    """Outputs and gradients of one training step."""
    net.zero_grad()
    outs = net(images)
    sum(out.square().mean() for out in outs).backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return {**{f'output {i}': out.detach() for i, out in enumerate(outs)}, **gradients}


def _largest_difference(first: Dict[str, Tensor], second: Dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest value of each tensor."""
    return max(float((value - second[name]).abs().max() / second[name].abs().max().clamp(1e-12))
               for name, value in first.items())


def _forms() -> List[contextlib.AbstractContextManager]:
    """The contexts of the memory-saving and of the plain forms."""
    return [contextlib.nullcontext(), plain_path()]


def compare_forms(device: str, size: int = 256, rounds: int = 3) -> Dict[str, Dict[str, float]]:
    """Compare both forms of ResNet-50 on a device.

    Args:
        device: ``'cpu'`` or ``'cuda'``.
        size: Height and width of the two images.
        rounds: Rounds in which the forms are timed in turn; the fastest counts.

    Returns:
        dict: For each case ``difference``, the largest relative difference of outputs and
        gradients in float64, and the ratios of ``time`` and ``saved`` in float32.
    """
    results = {}
    for case, arguments in CASES.items():
        torch.manual_seed(0)
        exact = _network(device, torch.float64, base_channels=16, **arguments)
        images = torch.randn(2, 3, 128, 160, dtype=torch.float64, device=device)
        steps = []
        for form in _forms():
            with form:
                steps.append(_step(exact, images))
        net = _network(device, torch.float32, **arguments)
        images = torch.randn(2, 3, size, size, device=device)
        times, saved = [[], []], []
        for form in _forms():
            with form:
                saved.append(saved_for_backward(net, lambda: net(images)))  # noqa: B023
        for _ in range(rounds):
            for row, form in zip(times, _forms(), strict=True):
                with form:
                    row.append(seconds(lambda: _step(net, images)))  # noqa: B023
        results[case] = dict(difference=_largest_difference(*steps),
                             time=min(times[0]) / min(times[1]), saved=saved[0] / saved[1])
    return results


def print_comparison() -> None:
    """Print the comparison on this machine's device as JSON."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    print(json.dumps(dict(device=device, tolerance=TOLERANCE, cases=compare_forms(device))))
