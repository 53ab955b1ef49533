"""Values for the weights of test networks."""
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
