"""The configs of WithRLA: each adds a hidden path to the backbone that mmdet's config has."""
import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmrla.commands import train
from mmrla.models import WithRLA
from support import CONFIGS

BLOCKS = dict(
    faster_rcnn_rla_regnetx_3=25, faster_rcnn_rla_res2net101_fpn_1x=33,
    faster_rcnn_rla_resnest50_fpn_1x=16, faster_rcnn_rla_convnext_t_fpn_1x=18,
    faster_rcnn_rla_timm_resnetrs50_fpn_1x=16, rtmdet_rla_s=5)


@pytest.mark.parametrize('path', sorted(CONFIGS.glob('with_rla/*.py')), ids=lambda path: path.stem)
def test_a_config_builds_its_backbone_and_fits_its_neck(path):
    cfg = Config.fromfile(path)
    backbone = cfg.model.backbone
    if 'timm' in path.name:
        pytest.importorskip('timm')
        assert backbone.backbone.pretrained
        backbone.backbone.pretrained = False  # no download
    else:
        assert backbone.backbone.init_cfg.type == 'Pretrained'
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        net = MODELS.build(backbone)
    net.eval()
    with torch.no_grad():
        outs = net(torch.zeros(1, 3, 96, 128))
    assert isinstance(net, WithRLA) and net.rla_config.channels == 32
    assert len(net._steps) == BLOCKS[path.name.split('.')[0]]
    assert [out.shape[1] for out in outs] == cfg.model.neck.in_channels
    assert cfg.default_hooks.checkpoint.type == 'SafeCheckpointHook'
    if 'faster' in path.name:
        assert cfg.train_cfg.max_epochs == 12


FREEZING = dict(frozen_stages=1, norm_eval=True)
FROM_SCRATCH = {
    # the network inside, the arguments of freezing that it takes
    'set': (dict(type='ResNet', depth=18, base_channels=8, norm_cfg=dict(
        type='BN', requires_grad=False), **FREEZING), FREEZING),
    'default': (dict(type='mmdet.ResNet', depth=18, base_channels=8), FREEZING),
    'inherited': (dict(type='ResNeXt', depth=50, base_channels=16, groups=4), FREEZING),
    'no norm_eval': (dict(type='mmpretrain.ConvNeXt', arch='atto', frozen_stages=1),
                     ['frozen_stages']),
    'neither': (dict(type='mmpretrain.TIMMBackbone', model_name='resnet18', features_only=True,
                     pretrained=True), []),
}


@pytest.mark.parametrize('outer', [True, False], ids=['outer weights', 'inner weights'])
@pytest.mark.parametrize('name', FROM_SCRATCH)
def test_from_scratch_trains_every_layer(name, outer):
    network, accepted = copy.deepcopy(FROM_SCRATCH[name])
    if name == 'neither':
        pytest.importorskip('timm')
    backbone = dict(type='WithRLA', backbone=network, norm_cfg=dict(
        type='BN', requires_grad=False))
    (backbone if outer else network)['init_cfg'] = dict(type='Pretrained', checkpoint='none.pth')
    cfg = Config(dict(default_scope='mmdet', model=dict(backbone=backbone)))
    train.apply_arguments(cfg, train.build_parser().parse_args(['config.py', '--from-scratch']))
    inside = cfg.model.backbone.backbone
    assert [key for key in FREEZING if key in inside] == list(accepted)

    with DefaultScope.overwrite_default_scope('mmdet'):
        net = MODELS.build(cfg.model.backbone)
    net.init_weights()
    net.train()
    assert net.pretrained_cfgs() == [] and not net.keeps_random_values()
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(module.training for module in net.modules() if isinstance(module, nn.BatchNorm2d))
