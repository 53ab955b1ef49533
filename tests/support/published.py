"""Files with the layouts of published weights and made-up values, in a cache of a test."""
from collections import OrderedDict
from pathlib import Path
from typing import Dict

import torch
from mmdet.models import ResNet
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmpretrain.utils import register_all_modules
from torch import Tensor

from mmrla.weights.authors import AUTHORS_FILES
from mmrla.weights.layouts import to_authors, to_ours

from .paths import CONFIGS

AUTHORS_NETWORKS = dict(
    resnet50_rla_2283='rla_v3_r50', ecanet50_rla_2215='rla_v3_eca_r50',
    resnet101_rla_2148='rla_v3_r101', ecanet101_rla_2100='rla_v3_eca_r101')


def plain_state(depth: int) -> Dict[str, Tensor]:
    """The state dict of torchvision's ResNet, on the current device."""
    state = OrderedDict(ResNet(depth, init_cfg=None).state_dict())
    state['fc.weight'], state['fc.bias'] = torch.zeros(1000, 2048), torch.zeros(1000)
    return state


def authors_state(name: str) -> Dict[str, Tensor]:
    """The state dict of a classifier that the authors published, on the current device."""
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(CONFIGS / f'pretrain/{AUTHORS_NETWORKS[name]}_imagenet.py')
    init_default_scope(cfg.default_scope)
    return to_authors(to_ours(MODELS.build(cfg.model).state_dict()))


def state_of(checkpoint: str) -> Dict[str, Tensor]:
    """The state dict that a name of weights stands for, on the current device."""
    scheme, _, name = checkpoint.partition('://')
    if scheme == 'torchvision':
        return plain_state(int(name.removeprefix('resnet')))
    return authors_state(name)


def fill(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Fill a state dict with random values."""
    for name, value in state.items():
        if name.endswith('running_var'):
            value.uniform_(0.5, 1.5)
        elif value.is_floating_point():
            value.normal_(0, 0.05)
    return state


def put_into_cache(checkpoint: str, home: Path, monkeypatch) -> Dict[str, Tensor]:
    """Make a file for a name of weights in the cache below ``home``; return its weights.

    The names of torchvision's files contain their sha256, so that a made-up file needs
    another name. Nothing is downloaded.
    """
    monkeypatch.setenv('TORCH_HOME', str(home))
    folder = home / 'hub/checkpoints'
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        state = fill(state_of(checkpoint))
    scheme, _, name = checkpoint.partition('://')
    if scheme == 'torchvision':
        torch.save(state, folder / f'{name}.pth')
        monkeypatch.setattr(mmengine_checkpoint, 'get_torchvision_models',
                            lambda: {name: f'http://127.0.0.1:9/{name}.pth'})
    else:
        prefixed = OrderedDict((f'module.{key}', value) for key, value in state.items())
        torch.save(dict(epoch=120, arch=name, state_dict=prefixed),
                   folder / AUTHORS_FILES[name].file_name)
    return state
