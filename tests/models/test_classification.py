"""The classifiers: the paper's counts and logits, and the way to a detector."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmpretrain.utils import register_all_modules

from mmrla.models import RLAPooling, RLAResNet
from mmrla.paper.counts import GIGA, MEGA, count_flops, count_parameters
from mmrla.weights import load_weights
from mmrla.weights.layouts import to_ours
from support import REPO, golden

pytestmark = pytest.mark.usefixtures('each_device')

CONFIGS = REPO / 'configs/pretrain'
# Parameters to the unit, and the FLOPs that the paper prints.
IMAGENET = {
    'r50': (25557032, '3.83'), 'r101': (44549160, '7.30'), 'r152': (60192808, '10.77'),
    'rla_r50': (25870696, '4.17'), 'rla_r101': (45003176, '7.79'),
    'rla_r152': (60770792, '11.47'),
    'rla_eca_r50': (25870782, '4.18'), 'rla_eca_r101': (45003347, '7.80'),
    'rla_eca_r152': (60771048, '11.48'),
    'se_r50': (28071976, '3.84'), 'se_r101': (49292328, '7.31'), 'se_r152': (66770984, '10.78'),
    'eca_r50': (25557118, '3.83'), 'eca_r101': (44549331, '7.30'), 'eca_r152': (60193064, '10.78'),
}
MOBILENET = {
    'mbv2': (3504872, '299.6'), 'rla_mbv2': (3625320, '351.8'),
    'rla_eca_mbv2': (3625351, '352.4'), 'eca_mbv2': (3504903, '300.1')}
# Trainable parameters in 10**6 as the paper prints them; 164 is the one that is off.
CIFAR = {
    'r110_cifar10': 1.73, 'rla_r110_cifar10': 1.80, 'r164_cifar10': 1.72, 'rla_r164_cifar10': 1.74,
    'xception_cifar10': 2.70, 'rla_xception_cifar10': 2.77,
    'xception_cifar100': 2.75, 'rla_xception_cifar100': 2.81}
GOLDEN = {
    'r50_paper': dict(rla=dict(variant='v1')),
    'r50_released': dict(rla=dict(variant='v3')),
    'r50_eca_released': dict(rla=dict(variant='v3'), attention=dict(type='ECA')),
    'r50_v2': dict(rla=dict(variant='v2')),
    'r50_v5': dict(rla=dict(variant='v5')),
}


def build(name):
    """The classifier of a config, without memory."""
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return MODELS.build(cfg.model).eval()


@pytest.mark.parametrize('path', sorted(CONFIGS.glob('*.py')), ids=lambda path: path.stem)
def test_every_config_builds_a_classifier_that_runs(path):
    model = build(path.stem)
    with torch.device('meta'):
        size = 32 if 'cifar' in path.stem else 224
        logits = model(torch.zeros(1, 3, size, size))
    assert logits.shape == (1, model.head.num_classes)


@pytest.mark.parametrize('name', IMAGENET)
def test_resnets_have_the_papers_parameters_and_flops(name):
    model, (parameters, flops) = build(f'{name}_imagenet'), IMAGENET[name]
    assert count_parameters(model) == parameters
    if flops:
        with torch.device('meta'):
            assert f'{count_flops(model) / GIGA:.2f}' == flops


@pytest.mark.parametrize('name', MOBILENET)
def test_mobilenets_have_the_papers_parameters_and_flops(name):
    model, (parameters, flops) = build(f'{name}_imagenet'), MOBILENET[name]
    assert count_parameters(model) == parameters
    # The paper's counter counts modules, and its MobileNetV2 has none for the
    # last pooling of 1280 channels from 7x7 to 1x1.
    pooling = 1280 * (7 * 7 + 1)
    with torch.device('meta'):
        assert f'{(count_flops(model) - pooling) / MEGA:.1f}' == flops


@pytest.mark.parametrize('name', CIFAR)
def test_cifar_networks_have_the_papers_parameters(name):
    assert count_parameters(build(name)) / 1e6 == pytest.approx(CIFAR[name], abs=0.02)


@pytest.mark.parametrize('case', GOLDEN)
def test_logits_are_those_of_the_authors_code(case):
    weights = to_ours(golden.weights(case))
    net, neck, fc = (RLAResNet(50, out_hidden=True, **GOLDEN[case]).eval(), RLAPooling(32).eval(),
                     torch.nn.Linear(2080, 1000))
    net.load_state_dict(weights.backbone)
    for module, prefix in ((neck, 'neck.'), (fc, 'head.fc.')):
        module.load_state_dict({name.removeprefix(prefix): value
                                for name, value in weights.entries.items()
                                if name.startswith(prefix)})
    with torch.no_grad():
        logits = fc(neck(net(golden.image()))[0])
    expected = torch.as_tensor(golden.figures(case)['logits'])
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()


def test_pooling_concatenates_x_and_h():
    neck = RLAPooling(2).eval()
    x, h = torch.full((1, 3, 4, 4), 5.0), torch.tensor([-1.0, 2.0]).reshape(1, 2, 1, 1)
    pooled, = neck([torch.zeros(1), x, h.expand(1, 2, 4, 4)])
    torch.testing.assert_close(pooled, torch.tensor([[5.0, 5.0, 5.0, 0.0, 2.0]]), rtol=1e-4,
                               atol=1e-4)


@pytest.mark.parametrize('activation, function', [('relu', torch.relu), ('tanh', torch.tanh)])
def test_pooling_applies_the_activation_that_is_asked_for(activation, function, randomise):
    neck = randomise(RLAPooling(4, activation=activation)).eval()
    x, h = torch.randn(2, 3, 5, 5), torch.randn(2, 4, 5, 5)
    expected = torch.cat([x.mean((2, 3)), function(neck.norm(h)).mean((2, 3))], 1)
    torch.testing.assert_close(neck([x, h])[0], expected)


def test_pooling_names_an_unknown_activation():
    with pytest.raises(ValueError, match="activation='gelu'.*'relu', 'tanh'"):
        RLAPooling(4, activation='gelu')


SMALL = dict(depth=18, base_channels=8, rla=dict(channels=4))


@pytest.fixture
def classifier_file(tmp_path, randomise):
    """A classifier's checkpoint as mmpretrain saves it, and its backbone."""
    backbone = randomise(RLAResNet(**SMALL, out_hidden=True))
    state = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    extra = {'neck.norm.weight': torch.ones(4), 'head.fc.weight': torch.ones(6, 68)}
    torch.save(dict(state_dict={**state, **extra}, meta=dict(epoch=120)), tmp_path / 'epoch.pth')
    return str(tmp_path / 'epoch.pth'), backbone


def test_a_detector_loads_the_whole_backbone_of_a_classifier(classifier_file):
    path, backbone = classifier_file
    detector = RLAResNet(**SMALL, init_cfg=dict(type='Pretrained', checkpoint=path))
    detector.init_weights()
    for name, value in detector.state_dict().items():
        assert torch.equal(value, backbone.state_dict()[name]), name


def test_the_report_lists_the_weights_that_a_detector_does_not_use(classifier_file):
    path, _ = classifier_file
    report = load_weights(RLAResNet(**SMALL), path)
    assert report.initial == []
    assert len(report.loaded) == len(RLAResNet(**SMALL).state_dict())
    # the classifier's own, and the norm of the h that only a classifier reads
    assert {name.split('.')[:2][-1] for name in report.ignored} == {'norm', 'fc', 'rla'}
    assert f'{len(report.loaded)} loaded' in str(report)
