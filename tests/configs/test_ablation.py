"""Every ablation config trains, and changes only the setting that it names."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmpretrain.structures import DataSample
from mmpretrain.utils import register_all_modules

from support import CONFIGS

# Settings for fewer or narrower blocks, by the type of the backbone.
SMALLER = dict(
    RLAResNet=dict(base_channels=8), RLACifarResNet=dict(depth=20, bottleneck=True),
    CifarDenseNet=dict(depth=16), CifarDualPathNet=dict(depth=20))


def small_classifier(path):
    """Build a smaller classifier of a config, with a head that fits."""
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    backbone = cfg.model.backbone
    with torch.device('meta'):
        full = MODELS.build(backbone).feat_dim
    backbone.update(SMALLER[backbone.type])
    cfg.model.head.in_channels += MODELS.build(backbone).feat_dim - full
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model.train()


@pytest.mark.parametrize('path', sorted(CONFIGS.glob('ablation/*.py')), ids=lambda path: path.stem)
def test_every_parameter_gets_a_gradient_and_the_loss_decreases(path):
    model = small_classifier(path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(4, 3, 64, 64)
    samples = [DataSample().set_gt_label(label) for label in range(4)]
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss, _ = model.parse_losses(model(images, samples, mode='loss'))
        loss.backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert missing == []
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    # Both iterations use the same images, so that the first step must reduce the loss.
    assert losses[1] < losses[0]


@pytest.mark.parametrize('name, expected', [
    ('rla_r50_v4_imagenet', dict(variant='v4')), ('rla_r50_unshared_imagenet', dict(shared=False)),
    ('rla_r50_no_exchange_imagenet', dict(exchange=False)),
    ('rla_r50_lstm_imagenet', dict(cell='lstm')), ('rla_r50_gru_imagenet', dict(cell='gru')),
    ('rla_r50_post_act_imagenet', dict(pre_act=False)),
    ('rla_r101_unshared_imagenet', dict(shared=False)),
    ('rla_r164_v6_cifar10', dict(variant='v6', channels=12)),
    ('rla_r164_k24_cifar10', dict(channels=24))])
def test_an_ablation_changes_only_the_setting_that_it_names(name, expected):
    base = 'rla_r164_cifar10' if 'r164' in name else f'{name[:name.index("_", 4)]}_imagenet'
    cfg, base = (Config.fromfile(CONFIGS / f'{folder}/{stem}.py')
                 for folder, stem in (('ablation', name), ('pretrain', base)))
    rla, base_rla = cfg.model.backbone.pop('rla'), base.model.backbone.pop('rla')
    assert rla == {**base_rla, **expected}
    # These configs do not start with zero residual branches; their comments say why.
    unstable = name in ('rla_r50_post_act_imagenet', 'rla_r50_gru_imagenet')
    assert cfg.model.backbone.pop('zero_init_residual', True) == (not unstable)
    assert cfg.model.backbone == base.model.backbone
    # The authors' code has no norm before the classifier in these variants.
    without_norm = 'cell' in expected or 'pre_act' in expected
    assert cfg.model.neck.get('norm_cfg', 'default') == (None if without_norm else 'default')
    assert cfg.optim_wrapper == base.optim_wrapper and cfg.param_scheduler == base.param_scheduler
