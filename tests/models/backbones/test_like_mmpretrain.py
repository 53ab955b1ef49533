"""What a user of mmpretrain's ResNets finds in ours: its defaults, arguments and values."""
import logging

import cv2
import mmpretrain.models.backbones as theirs
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, DefaultScope, init_default_scope
from mmpretrain import ImageClassificationInferencer
from mmpretrain.utils import register_all_modules

from mmrla.models import RLAMobileNetV2, RLAResNet, RLAResNeXt
from mmrla.models.backbones.resnet import ResidualBlock
from support import REPO

SMALL = dict(depth=18, base_channels=8)
DEFAULTS = {  # stem_channels, out_indices, norm_eval
    'mmpretrain': (64, (3,), False), 'mmdet': (8, (0, 1, 2, 3), True)}


@pytest.fixture
def log(monkeypatch):
    """The lines of the log, from level INFO."""
    lines = []
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'log', lambda level, message, *_: (
        level >= logging.INFO and lines.append(message)))
    return lines


def values(net):
    return net.stem_channels, net.out_indices, net.norm_eval


@pytest.mark.parametrize('scope, key, package', [
    (None, None, 'mmdet'), ('mmengine', None, 'mmdet'), ('mmdet', None, 'mmdet'),
    ('mmpretrain', None, 'mmpretrain'), ('mmpretrain', 'mmdet', 'mmdet'),
    ('mmdet', 'mmpretrain', 'mmpretrain')])
def test_scope_or_key_decides_whose_defaults_apply(scope, key, package, log):
    if scope is not None:
        init_default_scope(scope)
    net = MODELS.build(dict(type='RLAResNet', **SMALL, defaults=key))
    assert values(net) == DEFAULTS[package]
    if scope in DEFAULTS or key:
        assert len(log) == 1
        assert f"norm_eval={DEFAULTS[package][2]} by {package}'s defaults" in log[0]
        assert (repr(key) if key else repr(scope)) in log[0]
    else:
        assert log == []


def test_values_of_the_config_are_kept_and_not_logged(log):
    init_default_scope('mmpretrain')
    net = MODELS.build(dict(type='RLAResNet', **SMALL, stem_channels=4, out_indices=(0, 3),
                            norm_eval=True))
    assert values(net) == (4, (0, 3), True)
    assert log == []


def test_a_part_that_is_inherited_from_mmrla_has_the_defaults_of_the_run():
    init_default_scope('mmpretrain')
    with DefaultScope.overwrite_default_scope('mmrla'):
        assert values(RLAResNet(**SMALL)) == DEFAULTS['mmpretrain']


def test_the_other_backbones_have_mmpretrains_defaults_too():
    init_default_scope('mmpretrain')
    with torch.device('meta'):
        net = RLAResNeXt(depth=50)
        assert (net.groups, net.base_width, values(net)) == (32, 4, (64, (3,), False))
        assert RLAMobileNetV2().out_indices == (7,)


@pytest.mark.parametrize('ours, plain, arguments', [
    (RLAResNet, theirs.ResNet, dict(depth=50, expansion=2, base_channels=8)),
    (RLAResNet, theirs.ResNet, dict(depth=18, drop_path_rate=0.5)),
    (RLAResNet, theirs.ResNet, dict(depth=50, base_channels=8, drop_path_rate=0.3, with_cp=True)),
    (RLAResNeXt, theirs.ResNeXt, dict(depth=50, width_per_group=8, groups=4, base_channels=16)),
    (RLAResNeXt, theirs.ResNeXt, dict(depth=50)),
    (RLAResNet, theirs.ResNet, dict(depth=18, base_channels=8, zero_init_residual=True, init_cfg=[
        dict(type='Kaiming', layer=['Conv2d'])]))])
def test_without_rla_it_is_mmpretrains_network(ours, plain, arguments):
    outs, states = [], []
    for build in (lambda **kw: ours(rla=None, defaults='mmpretrain', **kw), plain):
        torch.manual_seed(0)
        net = build(**arguments)
        net.init_weights()
        states.append(net.state_dict())
        net.train()
        outs.append(net(torch.randn(4, 3, 33, 33)))
    assert list(states[0]) == list(states[1])
    for name, value in states[1].items():
        assert torch.equal(states[0][name], value), f'{name} starts differently'
    for out, expected in zip(*outs, strict=True):
        assert torch.equal(out, expected)


def test_the_rate_of_dropped_paths_rises_along_the_network():
    net = RLAResNet(**SMALL, drop_path_rate=0.7)
    rates = [0 if block.drop_path is None else block.drop_path.drop_prob
             for block in net.modules() if isinstance(block, ResidualBlock)]
    assert rates == pytest.approx([0.1 * t for t in range(8)])


@pytest.mark.parametrize('attention', [None, dict(type='SE', ratio=4)])
def test_dropped_paths_train_with_a_hidden_path(attention, randomise):
    """Both forms drop the same branches, and eval mode drops none."""
    image, gradients, outs = torch.randn(2, 3, 64, 64), [], []
    for memory_saving in (False, True):
        torch.manual_seed(0)
        net = randomise(RLAResNet(**SMALL, drop_path_rate=0.5, memory_saving=memory_saving,
                                  attention=attention)).double().train()
        torch.manual_seed(1)
        sum(out.square().mean() for out in net(image.double())).backward()
        gradients.append([p.grad for p in net.parameters()])
        outs.append(net.eval()(image.double()))
    kept = RLAResNet(**SMALL, attention=attention).double().eval()
    kept.load_state_dict(net.state_dict())
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)
    for out, expected in zip(outs[1], kept(image.double()), strict=True):
        torch.testing.assert_close(out, expected)


def test_an_expansion_needs_bottlenecks():
    with pytest.raises(ValueError, match='expansion=2 needs bottleneck blocks'):
        RLAResNet(18, expansion=2)


@pytest.mark.parametrize('kind', ['path', 'array'])
def test_mmpretrains_inferencer_runs_our_pipelines(kind, tmp_path):
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(REPO / 'configs/pretrain/rla_r20_cifar_folders.py')
    image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'image.png'), image)
    inferencer = ImageClassificationInferencer(cfg, pretrained=False, device='cpu')
    found, = inferencer(image if kind == 'array' else str(tmp_path / 'image.png'))
    assert found['pred_scores'].shape == (cfg.model.head.num_classes,)
    assert np.isfinite(found['pred_scores']).all()
