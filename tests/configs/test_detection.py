"""The detection configs."""
import pytest
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmrla.models import RLAMobileNetV2, RLAResNet
from support import CONFIGS

COCO = sorted(CONFIGS.glob('*_1x.py'))
WARM_STARTS = sorted(CONFIGS.glob('*_1x_warmstart.py'))
RESNETS = [path for path in COCO if 'mbv2' not in path.stem]
DETECTORS = ('faster_rcnn', 'mask_rcnn', 'retinanet')
RLA = dict(channels=32, variant='v1')
V3 = dict(channels=32, variant='v3')
GC = dict(type='GC', stages=(False, True, True, True))
NL = dict(type='NL', stages=(False, False, True, False), blocks=(-2,))
FORMS = dict(
    r=(None, None), rla_r=(RLA, None), eca_r=(None, dict(type='ECA')),
    rla_eca_r=(RLA, dict(type='ECA')), se_r=(None, dict(type='SE')))
# These comparisons have the depths of the paper's COCO tables.
COMPARISONS = dict(
    rla_se_r=(RLA, dict(type='SE')),
    cbam_r=(None, dict(type='CBAM')), rla_cbam_r=(RLA, dict(type='CBAM')),
    gc_r=(None, GC), rla_gc_r=(RLA, GC), nl_r=(None, NL), rla_nl_r=(RLA, NL))
# The depths of the weights that the authors published.
AUTHORS = dict(rla_v3_r=(V3, None), rla_v3_eca_r=(V3, dict(type='ECA')))


def test_there_is_a_config_for_every_detector_and_backbone():
    expected = {f'{detector}_{form}{depth}_fpn_1x.py' for detector in DETECTORS
                for forms, depths in ((FORMS, (50, 101, 152)), (COMPARISONS, (50, 101)),
                                      (AUTHORS, (50, 101)))
                for form in forms for depth in depths}
    mobile = {f'faster_rcnn_{form}mbv2_fpn_1x.py' for form in ('', 'rla_')}
    assert {path.name for path in COCO} == expected | mobile


@pytest.mark.parametrize('path', RESNETS, ids=lambda path: path.stem)
def test_a_config_has_the_settings_of_its_name(path):
    cfg = Config.fromfile(path)
    form, depth = path.stem.removesuffix('_fpn_1x').split('cnn_')[-1].removeprefix(
        'retinanet_').rsplit('r', 1)
    rla, attention = {**FORMS, **COMPARISONS, **AUTHORS}[form + 'r']
    backbone = cfg.model.backbone
    assert (backbone.type, backbone.depth) == ('RLAResNet', int(depth))
    assert backbone.rla == rla
    assert backbone.get('attention') == attention
    assert (backbone.frozen_stages, backbone.norm_eval) == (1, True)
    # The schedule of the paper.
    assert cfg.optim_wrapper.optimizer == dict(
        type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001)
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=8)
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].milestones) == (12, [8, 11])
    assert cfg.train_pipeline[2].scale == (1333, 800)


@pytest.mark.parametrize('path', COCO, ids=lambda path: path.stem)
def test_a_config_builds_its_detector(path):
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert isinstance(model.backbone, (RLAResNet, RLAMobileNetV2))
    assert (model.backbone.rla is None) == ('rla' not in path.stem)


def test_there_is_a_warm_start_for_every_detector_and_depth():
    assert {path.name for path in WARM_STARTS} == {
        f'{detector}_rla_r{depth}_fpn_1x_warmstart.py'
        for detector in DETECTORS for depth in (50, 101, 152)}


@pytest.mark.parametrize('path', WARM_STARTS, ids=lambda path: path.stem)
def test_a_warm_start_differs_only_in_its_weights(path):
    warm = Config.fromfile(path)
    cold = Config.fromfile(path.with_name(path.name.replace('_warmstart', '')))
    weights = warm.model.backbone.pop('init_cfg')
    depth = warm.model.backbone.depth
    assert weights == dict(type='Pretrained', checkpoint=f'torchvision://resnet{depth}')
    assert warm.model.backbone.rla.pop('pretrained') is False
    assert warm.model == cold.model
    assert warm.optim_wrapper == cold.optim_wrapper


def test_a_user_config_inherits_with_one_line(tmp_path):
    mine = tmp_path / 'mine.py'
    mine.write_text(f"_base_ = '{CONFIGS}/faster_rcnn_rla_r50_fpn_1x.py'\n"
                    "model = dict(backbone=dict(rla=dict(channels=16, variant='v3')))\n")
    backbone = Config.fromfile(mine).model.backbone
    assert backbone.rla == dict(channels=16, variant='v3')
    assert backbone.depth == 50


def test_a_dumped_config_is_unchanged(tmp_path):
    cfg = Config.fromfile(CONFIGS / 'mask_rcnn_rla_eca_r101_fpn_1x.py')
    cfg.dump(tmp_path / 'dumped.py')
    assert Config.fromfile(tmp_path / 'dumped.py').model == cfg.model
