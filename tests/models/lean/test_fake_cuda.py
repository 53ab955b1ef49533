"""The forward pass on CUDA without a GPU: devices and dtypes of every form.

FakeTensorMode runs the operators without data, so a tensor on a wrong device or of a wrong
dtype raises an error. It needs a torch that is built for CUDA. The backward pass needs a GPU.
"""
import contextlib
from typing import Iterator, List, Optional

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmrla.models import RLAResNet, RLAResNeXt
from mmrla.models.lean.conditions import plain_path
from mmrla.models.lean.fuse import fuse
from support.networks import SMALL_NETWORKS

if torch.version.cuda is None:
    pytest.skip('torch is built without CUDA', allow_module_level=True)

SMALL = dict(base_channels=4, rla=dict(channels=3))
NETWORKS = {
    **SMALL_NETWORKS,
    'RLA, norm_eval': lambda: RLAResNet(50, norm_eval=True, **SMALL),
    'ECA, norm_eval': lambda: RLAResNet(
        50, norm_eval=True, attention=dict(type='ECA'), **SMALL),
    'SE, norm_eval': lambda: RLAResNet(
        50, norm_eval=True, attention=dict(type='SE', ratio=4), **SMALL),
    'ResNeXt, ECA': lambda: RLAResNeXt(
        depth=50, groups=2, base_width=4, attention=dict(type='ECA'), **SMALL),
    'without RLA': lambda: RLAResNet(50, base_channels=4, rla=None, memory_saving=True),
}


@contextlib.contextmanager
def cuda_autocast(dtype: Optional[torch.dtype]) -> Iterator[None]:
    """``torch.autocast('cuda', dtype)``, which turns itself off where there is no GPU."""
    torch.set_autocast_enabled('cuda', dtype is not None)
    torch.set_autocast_dtype('cuda', dtype or torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_enabled('cuda', False)
        torch.clear_autocast_cache()


def fake_outputs(net: nn.Module, layout: torch.memory_format) -> List[Tensor]:
    """The outputs of a network whose parameters and buffers are fake tensors on CUDA."""
    values = {name: (value.shape, value.dtype) for name, value in net.state_dict().items()}
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    with FakeTensorMode():
        fake = {name: torch.empty(shape, dtype=dtype, device='cuda').requires_grad_(
            name in trained) for name, (shape, dtype) in values.items()}
        image = torch.empty(2, 3, 65, 72, device='cuda').contiguous(memory_format=layout)
        return torch.func.functional_call(net, fake, (image,), tie_weights=False)


@pytest.mark.parametrize('dtype, layout', [
    (None, torch.contiguous_format), (torch.float16, torch.channels_last),
    (torch.bfloat16, torch.contiguous_format)])
@pytest.mark.parametrize('mode', ['train', 'infer', 'fused'])
@pytest.mark.parametrize('case', NETWORKS)
def test_outputs_are_on_the_gpu_in_the_dtype_of_the_plain_forms(case, mode, dtype, layout):
    net = NETWORKS[case]()
    net = fuse(net) if mode == 'fused' else net.train(mode == 'train')
    with torch.set_grad_enabled(mode == 'train'), cuda_autocast(dtype):
        outs = fake_outputs(net, layout)
        with plain_path():
            expected = fake_outputs(net, layout)
    for out, other in zip(outs, expected, strict=True):
        assert out.device.type == 'cuda'
        assert (out.shape, out.dtype, out.requires_grad) == (
            other.shape, other.dtype, other.requires_grad)
