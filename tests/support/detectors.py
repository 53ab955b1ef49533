"""Small detectors with random values that find something on every image."""
from pathlib import Path
from typing import Any, Dict

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from .paths import CONFIGS

DETECTORS = {name: CONFIGS / f'shapes/{name}.py' for name in (
    'faster_rcnn_rla_r18_fpn', 'mask_rcnn_rla_eca_r18_fpn', 'retinanet_rla_r18_fpn')}
CLASSES = ('disc', 'square', 'triangle', 'star', 'cross', 'ring')
SMALL = {'model.backbone.base_channels': 8, 'model.neck.in_channels': [8, 16, 32, 64]}


def config_of(name: str, **changes: Any) -> Config:
    """Return the config of a small detector."""
    cfg = Config.fromfile(DETECTORS[name])
    cfg.merge_from_dict({**SMALL, **changes})
    return cfg


def build(cfg: Config) -> nn.Module:
    """Build a detector whose classifier is sure enough to find something."""
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(('fc_cls.weight', 'retina_cls.weight')):
                value.normal_(0, 0.1)
            if name.endswith(('fc_reg.weight', 'retina_reg.weight', 'rpn_reg.weight')):
                value.normal_(0, 0.05)
            if name.endswith('retina_cls.bias'):
                value.fill_(-1)
    return model.eval()


def save(cfg: Config, model: nn.Module, path: Path) -> Path:
    """Write a checkpoint as mmengine does, with the config in it."""
    meta: Dict[str, Any] = dict(cfg=cfg.pretty_text, dataset_meta=dict(classes=CLASSES))
    torch.save(dict(meta=meta, state_dict=model.state_dict()), path)
    return path
