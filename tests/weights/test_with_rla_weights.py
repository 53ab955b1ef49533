"""Weights of plain networks and of hidden paths, in WithRLA."""
import copy
import logging
import pickle

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint, save_checkpoint

from mmrla.models import RLAResNet, WithRLA
from mmrla.weights import load_weights
from mmrla.weights.errors import CheckpointError
from mmrla.weights.fit import WARM_START
from mmrla.weights.loading import find_new_parts
from support import load_tool

R18 = dict(depth=18, base_channels=8)
MMDET = dict(type='mmdet.ResNet', **R18)
RLA = dict(channels=4, variant='v3')


@pytest.fixture
def plain(randomise):
    net = randomise(MODELS.build(dict(MMDET)))
    net.eval()
    return net


@pytest.fixture
def torchvision_file(plain, tmp_path):
    """The names of torchvision: those of mmdet, and a classifier."""
    path = tmp_path / 'resnet18.pth'
    torch.save({**plain.state_dict(), 'fc.weight': torch.ones(5, 64), 'fc.bias': torch.ones(5)},
               path)
    return str(path)


@pytest.fixture
def image():
    return torch.randn(1, 3, 65, 64)


def with_rla(**kwargs):
    return MODELS.build(dict(type='WithRLA', backbone=dict(MMDET), rla=RLA, **kwargs))


def assert_same(net, other, image):
    net.eval(), other.eval()
    for ours, expected in zip(net(image), other(image), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize('inner', [True, False])
def test_a_torchvision_file_loads_by_init_cfg_and_is_reported(inner, plain, torchvision_file, image,
                                                              monkeypatch):
    messages = []
    monkeypatch.setattr(
        'mmrla.weights.loading.print_log', lambda text, logger=None, level=logging.INFO:
        messages.append((level, text)))
    init_cfg = dict(type='Pretrained', checkpoint=torchvision_file)
    cfg = dict(type='WithRLA', backbone=dict(MMDET), rla=RLA)
    (cfg['backbone'] if inner else cfg)['init_cfg'] = init_cfg
    net = MODELS.build(cfg)
    net.init_weights()
    assert_same(net, plain, image)
    (level, text), (_, second) = messages
    assert level == logging.INFO and 'the hidden path is new' in second
    assert text.startswith(f'ResNetWithRLA from {torchvision_file}: '
                           f'{len(plain.state_dict())} loaded')
    assert WARM_START in text and 'fc.weight' in text


@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_it_loads_by_load_from_with_any_prefix(prefix, plain, tmp_path, image):
    path = tmp_path / 'plain.pth'
    save_checkpoint(dict(state_dict={
        prefix + name: value for name, value in plain.state_dict().items()}), str(path))
    net = with_rla()
    report = load_weights(net, str(path))
    assert len(report.loaded) == len(plain.state_dict())
    assert_same(net, plain, image)


def test_its_own_checkpoint_comes_back_and_knows_its_variant(randomise, tmp_path, image):
    net, path = randomise(with_rla()), tmp_path / 'own.pth'
    save_checkpoint(dict(state_dict=net.state_dict()), str(path))
    other = with_rla()
    load_checkpoint(other, str(path), strict=True)
    assert_same(other, net, image)
    wrong = WithRLA(dict(MMDET), rla=dict(channels=4, variant='v1'))
    with pytest.raises(CheckpointError, match=r"set model\.backbone\.rla\.variant='v3'"):
        load_checkpoint(wrong, str(path))


@pytest.mark.parametrize('copied', [
    lambda net: net, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))],
    ids=['itself', 'deepcopy', 'pickle'])
def test_what_is_frozen_depends_on_the_loaded_weights(copied, plain):
    cfg = dict(MMDET, frozen_stages=1, norm_eval=True)
    net = copied(WithRLA(cfg, rla=RLA)).train()
    stages = net.rla[0], net.rla[1]

    def trains():
        return [(all(p.requires_grad for p in stage.parameters()), stage.norms[0].training)
                for stage in stages]

    assert net.new_parts is None and trains() == [(False, False), (True, False)]
    own = net.state_dict()
    net.load_state_dict(own)
    assert net.new_parts == frozenset() and trains() == [(False, False), (True, False)]
    net.load_state_dict(plain.state_dict(), strict=False)
    assert net.new_parts == {'rla'} and trains() == [(True, True)] * 2
    assert net.state_dict()._metadata['']['new_parts'] == ['rla']
    assert find_new_parts(net, plain.state_dict()) == ('rla',)
    assert find_new_parts(net, own) == ()


def test_ddp_must_know_what_the_weights_let_train(plain, monkeypatch):
    monkeypatch.setattr('mmrla.models.with_rla.get_world_size', lambda: 2)
    WithRLA(dict(MMDET), rla=RLA).load_state_dict(plain.state_dict(), strict=False)
    net = WithRLA(dict(MMDET, frozen_stages=1), rla=RLA)
    with pytest.raises(RuntimeError, match="runner_type='RLARunner'"):
        net.load_state_dict(plain.state_dict(), strict=False)
    net.is_wrapped_later = True
    net.load_state_dict(plain.state_dict(), strict=False)
    assert all(parameter.requires_grad for parameter in net.rla.parameters())


def test_frozen_random_values_are_found(torchvision_file):
    frozen = dict(MMDET, frozen_stages=1)
    net = WithRLA(dict(frozen), rla=RLA)
    assert net.keeps_random_values()
    assert WithRLA(dict(MMDET), rla=RLA).keeps_random_values()  # norm_eval is True by default
    assert not WithRLA(dict(MMDET, norm_eval=False), rla=RLA).keeps_random_values()
    pretrained = WithRLA(dict(frozen), rla=RLA, init_cfg=dict(
        type='Pretrained', checkpoint=torchvision_file))
    assert not pretrained.keeps_random_values()
    load_weights(net, torchvision_file)
    assert not net.keeps_random_values()


def test_the_specialised_class_reads_it_and_it_reads_that_classs(randomise, tmp_path, image):
    for source, target in ((with_rla(), RLAResNet(**R18, rla=RLA)),
                           (RLAResNet(**R18, rla=RLA), with_rla())):
        path = tmp_path / f'{type(source).__name__}.pth'
        save_checkpoint(dict(state_dict=randomise(source).state_dict()), str(path))
        report = load_weights(target, str(path))
        assert not report.initial and not report.ignored
        source.eval(), target.eval()
        for ours, expected in zip(target(image), source(image), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


MOBILENET = dict(type='mmpretrain.MobileNetV2', widen_factor=0.25, out_indices=(2, 4, 6))
RESNET_V1D = dict(type='mmpretrain.ResNetV1d', depth=50, out_indices=(0, 1, 2, 3))


@pytest.mark.parametrize('inner', [MMDET, MOBILENET], ids=['resnet', 'mobilenet'])
def test_a_converted_checkpoint_comes_back(inner, randomise, tmp_path, image, monkeypatch, capsys):
    net = randomise(WithRLA(dict(inner), rla=RLA))
    save_checkpoint(dict(state_dict=net.state_dict()), str(tmp_path / 'own.pth'))
    monkeypatch.setattr('sys.argv', [
        'convert', str(tmp_path / 'own.pth'), str(tmp_path / 'shared.safetensors')])
    load_tool('convert_weights').main()
    path = capsys.readouterr().out.strip().splitlines()[-1]
    other = WithRLA(dict(inner), rla=RLA)
    load_weights(other, path)
    assert_same(other, net, image)


@pytest.mark.parametrize('inner', [MOBILENET, RESNET_V1D], ids=['mobilenet', 'resnet v1d'])
def test_names_that_another_layout_has_are_left_as_they_are(inner, randomise, tmp_path, image):
    """mmpretrain's networks have other names than mmdet's, which mmrla's networks have."""
    plain, path = randomise(MODELS.build(dict(inner))), tmp_path / 'plain.pth'
    save_checkpoint(dict(state_dict=plain.state_dict()), str(path))
    net = WithRLA(dict(inner))
    report = load_weights(net, str(path))
    assert len(report.loaded) == len(plain.state_dict())
    assert_same(net, plain, image)


def test_a_classifiers_file_without_the_norms_of_detection_loads(randomise, tmp_path, image):
    cfg = dict(type='mmpretrain.ConvNeXt', arch='atto', gap_before_final_norm=False)
    classifier, path = randomise(MODELS.build(dict(cfg))), tmp_path / 'convnext.pth'
    save_checkpoint(dict(state_dict={f'backbone.{name}': value for name, value
                                     in classifier.state_dict().items()}), str(path))
    net = WithRLA(dict(cfg, out_indices=(0, 1, 2, 3), init_cfg=dict(
        type='Pretrained', checkpoint=str(path), prefix='backbone.')))
    net.init_weights()
    net.eval(), classifier.eval()
    assert torch.equal(net(image)[-1], classifier(image)[-1])


def test_a_file_of_another_network_is_refused(torchvision_file):
    net = MODELS.build(dict(type='WithRLA', backbone=dict(type='mmdet.Darknet')))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(CheckpointError, match='DarknetWithRLA'):
        load_weights(net, torchvision_file)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
