"""The configs of WithRLA: each adds a hidden path to the backbone that mmdet's config has."""
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

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
