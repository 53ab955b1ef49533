"""Fixtures of tests that train in forked processes."""
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import runner as mmengine_runner_module

from mmrla.datasets import make_shapes
from support import load_tool


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Shapes without empty images, so that an epoch has as many steps as it looks."""
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=8, val=2)


@pytest.fixture(scope='module')
def fast_children():
    """Prepare this process for children, and undo it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, 'pretty_text', Config.pretty_text)  # put back afterwards
        patch.setattr(mmengine_runner_module, 'collect_env', None)
        threads = torch.get_num_threads()
        load_tool('dev/chaos').prepare()
        yield
        torch.set_num_threads(threads)
