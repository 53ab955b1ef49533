"""Values and results of test networks."""
from typing import Dict

import torch
from torch import nn


def randomise(module: nn.Module) -> nn.Module:
    """Fill all parameters and buffers with random values.

    No weight is zero and no running mean is zero, so that every term of a
    computation affects the output.
    """
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith('running_var'):
                value.uniform_(0.5, 1.5)
            elif name.endswith('num_batches_tracked'):
                value.zero_()
            elif value.dim() < 2:
                value.normal_(0.5 if name.endswith('weight') else 0.0, 0.2)
            else:
                value.normal_(0, value[0].numel()**-0.5)
    return module


def results(net: nn.Module, image: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Outputs, gradients and buffers of one step."""
    net.zero_grad()
    outs = net(image)
    sum(out.sin().sum() for out in outs).backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    return {**{f'out {i}': out.detach() for i, out in enumerate(outs)}, **gradients, **buffers}
