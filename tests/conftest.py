"""What the tests share."""
import logging
import os

import pytest
import torch

import mmrla  # noqa: F401


@pytest.fixture(autouse=True)
def _quiet_and_repeatable():
    """mmengine logs every initial value; and each test starts from one seed."""
    logging.getLogger('mmengine').setLevel(logging.ERROR)
    torch.manual_seed(0)


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f'touch {self.trace}',)


@pytest.fixture
def code(tmp_path):
    """An object that runs code when it is unpickled, and the file that the code makes."""
    return Malicious(tmp_path / 'it-ran'), tmp_path / 'it-ran'


@pytest.fixture
def randomise():
    """Give a network values that hide nothing: no zero, no running mean of 0."""

    def fill(module: torch.nn.Module) -> torch.nn.Module:
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

    return fill
