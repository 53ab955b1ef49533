"""Configs that inherit from mmrla's, by package name and by path."""
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS, init_default_scope

from mmrla.datasets import make_shapes
from support import CONFIGS, REPO

# The example of the README.
EXAMPLE = """\
_base_ = 'mmrla::configs/faster_rcnn_rla_r50_fpn_1x.py'

data_root = 'data/mine/'
metainfo = dict(classes=('disc', 'square', 'triangle'))
model = dict(roi_head=dict(bbox_head=dict(num_classes=3)))
train_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo))
val_dataloader = dict(dataset=dict(data_root=data_root, metainfo=metainfo))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
"""


def test_the_example_builds_its_detector_and_reads_its_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_shapes(tmp_path / 'data/mine', train=8, val=2)
    (tmp_path / 'mine.py').write_text(EXAMPLE)
    cfg = Config.fromfile('mine.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert model.roi_head.bbox_head.fc_cls.out_features == 3 + 1
    assert model.backbone.init_cfg['checkpoint'] == 'torchvision://resnet50'
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        dataset = DATASETS.build(loader.dataset)
        labels = {box['bbox_label'] for i in range(len(dataset))
                  for box in dataset.get_data_info(i)['instances']}
        assert labels and labels <= {0, 1, 2}


def test_a_classifier_that_is_inherited_by_name_has_the_modules_of_its_scope(tmp_path):
    (tmp_path / 'mine.py').write_text("_base_ = 'mmrla::configs/pretrain/rla_r50_imagenet.py'\n")
    cfg = Config.fromfile(tmp_path / 'mine.py')
    assert cfg.model._scope_ == 'mmrla'  # set by mmengine
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    modules = [model, model.head, *map(TRANSFORMS.build, cfg.train_pipeline[1:2])]
    assert {type(module).__module__.split('.')[0] for module in modules} == {'mmpretrain'}
    assert type(HOOKS.build(cfg.custom_hooks[0])).__name__ == 'CheckLabelsHook'


def test_the_scope_of_a_run_decides_what_a_name_means():
    for scope in ('mmdet', 'mmpretrain', 'mmdet'):
        init_default_scope(scope)
        with MODELS.switch_scope_and_registry('mmrla') as registry:
            assert registry.get('ResNet').__module__.startswith(scope)
            assert registry.get('RLAResNet').__module__.startswith('mmrla')


@pytest.mark.parametrize('base', [
    f"'{CONFIGS}/faster_rcnn_rla_r50_fpn_1x.py'",
    "__import__('mmrla') and 'mmrla::configs/faster_rcnn_rla_r50_fpn_1x.py'"])
def test_a_tool_that_does_not_import_mmrla_reads_a_path_or_an_import(base, tmp_path):
    (tmp_path / 'mine.py').write_text(f'_base_ = {base}\n')
    code = ('from mmengine.config import Config; '
            'print(Config.fromfile("mine.py").model.backbone.rla.variant)')
    result = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, text=True,
                            capture_output=True, env={'PYTHONPATH': str(REPO)})
    assert result.stdout.strip() == 'v1', result.stderr[-2000:]


# A removed config, the one that replaces it, and its options.
REPLACEMENTS = {
    'retinanet_rla_r152_fpn_1x': ('retinanet_rla_r101_fpn_1x', {
        'model.backbone.depth': 152,
        'model.backbone.init_cfg.checkpoint': 'torchvision://resnet152'}),
    'mask_rcnn_rla_gc_r50_fpn_1x': ('mask_rcnn_rla_r50_fpn_1x', {
        'model.backbone.attention.type': 'GC',
        'model.backbone.attention.stages': (False, True, True, True)}),
    'pretrain/rla_se_x50_32x4d_imagenet': ('pretrain/rla_r50_imagenet', {
        'model.backbone.type': 'RLAResNeXt', 'model.backbone.groups': 32,
        'model.backbone.base_width': 4, 'model.backbone.attention.type': 'SE'}),
    'ablation/rla_r50_gru_imagenet': ('ablation/rla_r50_lstm_imagenet', {
        'model.backbone.rla.cell': 'gru', 'model.backbone.zero_init_residual': False}),
}
PARAMETERS = {'pretrain/rla_se_x50_32x4d_imagenet': 27_978_344,
              'ablation/rla_r50_gru_imagenet': 26_056_104}


@pytest.mark.parametrize('name', REPLACEMENTS)
def test_options_replace_a_config_of_no_table(name):
    path, options = REPLACEMENTS[name]
    assert not (CONFIGS / f'{name}.py').exists()
    cfg = Config.fromfile(CONFIGS / f'{path}.py')
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    if name in PARAMETERS:
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
