"""mmengine's pure-Python configs, in which a ``type`` is a class."""
import json

import pytest
from mmdet.testing import demo_mm_inputs
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmrla.datasets.errors import DataError
from mmrla.engine.config_checks import ConfigError, check_arguments
from mmrla.engine.preflight import check_run
from mmrla.models import RLAResNet
from mmrla.weights.errors import CheckpointError

BASE = '''
from mmdet.datasets import CocoDataset
from mmdet.models import FPN, DetDataPreprocessor, FocalLoss, L1Loss, RetinaHead, RetinaNet
from mmdet.models.task_modules import (
    AnchorGenerator, DeltaXYWHBBoxCoder, MaxIoUAssigner, PseudoSampler)

from mmrla.models import RLAResNet

default_scope = 'mmdet'
model = dict(
    type=RetinaNet,
    data_preprocessor=dict(type=DetDataPreprocessor, pad_size_divisor=32),
    backbone=dict(type=RLAResNet, depth=18, base_channels=8, rla=dict(channels=8)),
    neck=dict(type=FPN, in_channels=[8, 16, 32, 64], out_channels=16, num_outs=5,
              start_level=1, add_extra_convs='on_input'),
    bbox_head=dict(
        type=RetinaHead, num_classes=80, in_channels=16, feat_channels=16, stacked_convs=1,
        anchor_generator=dict(type=AnchorGenerator, octave_base_scale=4, scales_per_octave=3,
                              ratios=[0.5, 1.0, 2.0], strides=[8, 16, 32, 64, 128]),
        bbox_coder=dict(type=DeltaXYWHBBoxCoder),
        loss_cls=dict(type=FocalLoss), loss_bbox=dict(type=L1Loss)),
    train_cfg=dict(
        assigner=dict(type=MaxIoUAssigner, pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0),
        sampler=dict(type=PseudoSampler), allowed_border=-1, pos_weight=-1),
    test_cfg=dict(nms_pre=10, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5)))
train_dataloader = dict(batch_size=2, dataset=dict(
    type=CocoDataset, data_root='data', ann_file='train.json', data_prefix=dict(img=''),
    pipeline=[]))
'''
DERIVED = '''
from mmengine.config import read_base
from mmengine.model import PretrainedInit

with read_base():
    from .base import *

model.backbone.update(norm_eval=False)
model.update(backbone=dict(init_cfg=dict(type=PretrainedInit, checkpoint='missing.pth')))
'''


@pytest.fixture
def base(tmp_path):
    """The path of a config, beside an annotation file of one class."""
    register_all_modules(init_default_scope=False)
    (tmp_path / 'base.py').write_text(BASE)
    (tmp_path / 'train.json').write_text(json.dumps(dict(
        images=[], annotations=[], categories=[dict(id=1, name='person')])))
    return tmp_path / 'base.py'


def read(path):
    cfg = Config.fromfile(path)
    cfg.work_dir = str(path.parent / 'work')
    cfg.train_dataloader.dataset.data_root = str(path.parent)
    return cfg


def test_a_class_as_the_type_builds_trains_and_survives_a_dump(base, tmp_path):
    cfg = read(base)
    init_default_scope(cfg.default_scope)
    cfg.dump(tmp_path / 'dumped.py')
    for config in (cfg, Config.fromfile(tmp_path / 'dumped.py')):
        model = MODELS.build(config.model).train()
        assert type(model.backbone) is RLAResNet
        batch = demo_mm_inputs(2, [(3, 64, 64)] * 2, num_items=[2, 2], num_classes=3)
        losses = model(**model.data_preprocessor(batch, True), mode='loss')
        loss, _ = model.parse_losses(losses)
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.backbone.parameters())


def test_a_misspelt_argument_of_a_class_is_named(base):
    cfg = read(base)
    check_arguments(cfg)
    cfg.model.backbone.deth = 50
    with pytest.raises(ConfigError, match='model.backbone: RLAResNet has no argument deth; did'):
        check_arguments(cfg)


def test_missing_weights_of_a_class_are_named(base, tmp_path):
    (tmp_path / 'derived.py').write_text(DERIVED)
    cfg = read(tmp_path / 'derived.py')
    assert cfg.model.backbone.depth == 18
    with pytest.raises(CheckpointError, match='missing.pth does not exist'):
        check_run(cfg, ('train_dataloader',))


def test_the_classes_of_a_data_set_that_is_a_class_are_known(base):
    cfg = read(base)
    with pytest.raises(DataError, match='79 classes are missing'):
        check_run(cfg, ('train_dataloader',))
