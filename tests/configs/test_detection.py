"""The detection configs."""
import functools
import os
import re

import pytest
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmrla.paper.tables import TABLES
from mmrla.weights.layouts import to_ours
from mmrla.weights.loading import PreparedState
from support import CONFIGS, REPO, run_command
from support.published import put_into_cache, state_of

COCO = sorted(CONFIGS.glob('*_1x.py'))
DETECTORS = ('faster_rcnn', 'mask_rcnn', 'retinanet')
RLA = dict(channels=32, variant='v1')
V3 = dict(channels=32, variant='v3')
GC = dict(type='GC', stages=(False, True, True, True))
NL = dict(type='NL', stages=(False, False, True, False), blocks=(-2,))
# The forms of tables 4 and 5, and those of the authors' weights.
FORMS = dict(
    r=(None, None), rla_r=(RLA, None), eca_r=(None, dict(type='ECA')),
    rla_eca_r=(RLA, dict(type='ECA')), se_r=(None, dict(type='SE')),
    rla_v3_r=(V3, None), rla_v3_eca_r=(V3, dict(type='ECA')))
# Table 5 has these for Mask R-CNN with ResNet-50 only.
MASK_FORMS = dict(gc_r=(None, GC), nl_r=(None, NL))
AUTHORS = {
    ('rla_v3_r', 50): 'resnet50_rla_2283', ('rla_v3_r', 101): 'resnet101_rla_2148',
    ('rla_v3_eca_r', 50): 'ecanet50_rla_2215', ('rla_v3_eca_r', 101): 'ecanet101_rla_2100'}


def form_and_depth(path):
    """The form of the backbone and its depth, from the name of a config."""
    backbone = re.fullmatch(f'({"|".join(DETECTORS)})_(.*)_fpn_1x', path.stem)[2]
    form, depth = re.fullmatch(r'(.*r)(\d+)', backbone).groups()
    return form, int(depth)


def build_detector(cfg):
    """The detector of a config, on the current device."""
    register_all_modules(init_default_scope=False)
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def test_there_is_a_config_for_every_row_of_the_tables_and_for_v3():
    expected = {f'{detector}_{form}{depth}_fpn_1x.py' for detector in DETECTORS
                for form in FORMS for depth in (50, 101)}
    expected |= {f'mask_rcnn_{form}50_fpn_1x.py' for form in MASK_FORMS}
    assert {path.name for path in COCO} == expected
    rows = {row.config for key in ('detection', 'mask') for row in TABLES[key].rows}
    assert rows == {path.stem for path in COCO if '_v3_' not in path.stem}


@functools.cache
def shapes_of(checkpoint):
    """The weights that a name stands for, as values that need no memory."""
    with torch.device('meta'):
        state = state_of(checkpoint)
    return {name: torch.zeros((), dtype=value.dtype).expand(value.shape)
            for name, value in state.items()}


@pytest.mark.parametrize('path', COCO, ids=lambda path: path.stem)
def test_a_config_has_the_settings_of_its_name_and_weights_that_fit(path):
    cfg = Config.fromfile(path)
    form, depth = form_and_depth(path)
    rla, attention = {**FORMS, **MASK_FORMS}[form]
    check_settings(cfg, depth, rla, attention)
    name = AUTHORS.get((form, depth))
    checkpoint = f'authors://{name}' if name else f'torchvision://resnet{depth}'
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=checkpoint)
    with torch.device('meta'):
        model = build_detector(cfg)
    report = PreparedState(model, shapes_of(checkpoint)).report
    new = set() if rla == V3 else {
        name for name, part in (('rla', rla), ('attention', attention)) if part is not None}
    assert set(report.new_parts) == new
    # Nothing is left random but the new parts and the heads.
    random = [name for name in report.initial if name.startswith('backbone.')]
    assert [name for name in random if not ('.rla.' in name and 'rla' in new
                                            or '.attention.' in name and 'attention' in new)] == []
    # The classifier and its norm of h, and the norm of the last h, which a detector drops.
    assert [name for name in report.ignored
            if not re.match(r'(fc|bn2|stage_bns\.3\.2)\.', name)] == []


def check_settings(cfg, depth, rla, attention):
    """Compare a config with the backbone of its name and the recipe of the paper."""
    backbone = cfg.model.backbone
    assert (backbone.type, backbone.depth) == ('RLAResNet', depth)
    assert backbone.rla == rla
    assert backbone.get('attention') == attention
    assert (backbone.frozen_stages, backbone.norm_eval) == (1, True)
    assert cfg.optim_wrapper.optimizer == dict(
        type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0001)
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=8)
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].milestones) == (12, [8, 11])
    assert cfg.train_pipeline[2].scale == (1333, 800)


@pytest.mark.parametrize('form', [*FORMS, *MASK_FORMS])
def test_a_backbone_starts_from_the_file_in_the_cache(form, tmp_path, monkeypatch):
    register_all_modules(init_default_scope=False)
    detector = 'mask_rcnn' if form in MASK_FORMS else 'retinanet'
    cfg = Config.fromfile(CONFIGS / f'{detector}_{form}50_fpn_1x.py').model.backbone
    given = to_ours(put_into_cache(cfg.init_cfg.checkpoint, tmp_path, monkeypatch)).backbone
    backbone = MODELS.build(cfg)
    backbone.init_weights()
    own = backbone.state_dict()
    gated = {f'{name}.{leaf}' for name, module in backbone.named_modules() for leaf in
             ('weight', 'bias') if module in [gate.norm for gate in backbone.gates()]}
    compared = [name for name in own if name in given and name not in gated]
    assert len(compared) > 200
    assert [name for name in compared if not torch.equal(own[name], given[name])] == []
    frozen = {name for name, p in backbone.named_parameters() if not p.requires_grad}
    hidden = {name for name in frozen if name.startswith('rla.') or '.attention.' in name}
    assert bool(hidden) == ('v3' in form)  # new parts train, pretrained ones are frozen
    assert {'conv1.weight', 'layer1.0.conv1.weight'} <= frozen


def test_the_detectors_backbone_has_the_weights_and_its_heads_are_random(tmp_path, monkeypatch):
    given = put_into_cache('torchvision://resnet50', tmp_path, monkeypatch)
    model = build_detector(Config.fromfile(CONFIGS / 'faster_rcnn_rla_r50_fpn_1x.py'))
    model.init_weights()
    assert torch.equal(model.backbone.conv1.weight, given['conv1.weight'])
    assert model.backbone.new_parts == {'rla'}
    assert model.roi_head.bbox_head.fc_cls.weight.std() > 0


@pytest.mark.parametrize('form', ['rla_r50', 'rla_v3_r50'])
def test_unreachable_weights_end_the_run_in_one_line_before_data_is_read(form, tmp_path):
    # The annotation files are broken, so that reading them would be the error.
    data = tmp_path / 'coco/annotations'
    data.mkdir(parents=True)
    for split in ('train', 'val'):
        (data / f'instances_{split}2017.json').write_text('{}')
    environment = {**os.environ, 'TORCH_HOME': str(tmp_path), 'PYTHONPATH': str(REPO),
                   'http_proxy': 'http://127.0.0.1:9', 'https_proxy': 'http://127.0.0.1:9'}
    root = f'{tmp_path}/coco/'
    options = [f'train_dataloader.dataset.data_root={root}',
               f'val_dataloader.dataset.data_root={root}',
               f'test_dataloader.dataset.data_root={root}',
               f'val_evaluator.ann_file={data}/instances_val2017.json',
               f'test_evaluator.ann_file={data}/instances_val2017.json']
    result = run_command('tools/train.py', CONFIGS / f'retinanet_{form}_fpn_1x.py', '--work-dir',
                         tmp_path / 'run', '--no-checks', '--cfg-options', *options,
                         env=environment)
    assert result.returncode == 1
    line = result.stderr.strip().splitlines()[-1]
    name = dict(rla_r50='https://download.pytorch.org/models/resnet50-0676ba61.pth',
                rla_v3_r50='authors://resnet50_rla_2283')[form]
    assert line.startswith(f'checkpoint {name} cannot be downloaded')
    assert str(tmp_path / 'hub/checkpoints') in line
    assert 'Traceback' not in result.stderr


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
