"""Other people's weights: every layout is recognised, and computes what it computed there."""
import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import mmdet.models
import mmpretrain.models
import pytest
import timm
import torch
import torchvision
from mmdet.utils import register_all_modules as register_mmdet
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmpretrain.utils import register_all_modules as register_mmpretrain

from mmrla.models import (
    RLAMobileNetV2,
    RLAResNet,
    RLAResNetV1c,
    RLAResNetV1d,
    RLAResNeXt,
)
from mmrla.weights import layouts, load_weights
from mmrla.weights.errors import CheckpointError
from mmrla.weights.layouts import to_authors, to_ours
from support import REPO, golden
from support.authors import authors_detector, authors_file

# Narrow layers, which need less memory.
NARROW = {'model.roi_head.bbox_head.fc_out_channels': 64}
DETECTORS = dict(faster_rcnn=NARROW, mask_rcnn=NARROW, retinanet={})
RESNETS = {'r50_released': 'rla_v3_r50', 'r50_eca_released': 'rla_v3_eca_r50'}


def build(config, changes={}):
    """The model of a changed config, with random values."""
    register_mmdet(init_default_scope=False)
    register_mmpretrain(init_default_scope=False)
    cfg = Config.fromfile(REPO / 'configs' / config)
    cfg.merge_from_dict(changes)
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model).eval()


def assert_close(out, expected):
    error = (out - expected).abs().max() / expected.abs().max()
    assert error < 1e-4, f'off by {error:.1e} of the largest value'


@pytest.mark.parametrize('case, config', [
    *RESNETS.items(), ('mbv2', 'rla_mbv2')])
def test_the_authors_classifiers_give_their_logits(case, config, tmp_path):
    model = build(f'pretrain/{config}_imagenet.py')
    path = authors_file(tmp_path, case)
    report = load_weights(model, path)
    assert report.initial == [] and report.ignored == []
    with torch.no_grad():
        logits = model(golden.image())
    assert_close(logits, torch.from_numpy(golden.figures(case)['logits']))


@pytest.mark.parametrize('case', RESNETS)
@pytest.mark.parametrize('detector', DETECTORS)
def test_the_authors_detectors_load_whole(detector, case, tmp_path):
    model = build(f'{detector}_{RESNETS[case]}_fpn_1x.py', DETECTORS[detector])
    path, heads = authors_detector(tmp_path, model, case)
    load_checkpoint(model, path)
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in heads.items())
    with torch.no_grad():
        outs = model.backbone(golden.image())
    for i, out in enumerate(outs, 1):
        assert_close(out, torch.from_numpy(golden.figures(case)[f'stage{i}']))
    report = load_weights(model, path)
    assert report.initial == []
    # In detection nobody reads the h that this norm would make.
    assert {name.rsplit('.', 1)[0] for name in report.ignored} == {'backbone.stage_bns.3.2'}


@pytest.mark.parametrize('case', ['r50_released', 'r50_eca_released'])
def test_a_detectors_backbone_takes_the_authors_imagenet_file(case, tmp_path):
    path = authors_file(tmp_path, case)
    attention = dict(type='ECA') if 'eca' in case else None
    net = RLAResNet(50, rla=dict(variant='v3'), attention=attention,
                    init_cfg=dict(type='Pretrained', checkpoint=path))
    net.init_weights()
    with torch.no_grad():
        out = net.eval()(golden.image())[-1]
    assert_close(out, torch.from_numpy(golden.figures(case)['stage4']))


@pytest.mark.parametrize('case', ['r50_released', 'r50_eca_released', 'mbv2'])
def test_there_and_back_changes_nothing(case):
    theirs = golden.weights(case)
    back = to_authors(to_ours(theirs))
    assert back.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(back[name], value), name


def test_se_and_a_detector_go_there_and_back(randomise):
    net = randomise(RLAResNet(18, base_channels=16, rla=dict(channels=4, variant='v3'),
                              attention=dict(type='SE', ratio=4)))
    state = OrderedDict((f'backbone.{name}', value) for name, value in net.state_dict().items())
    state['neck.lateral_convs.0.conv.weight'] = torch.ones(1)
    theirs = to_authors(to_ours(state))
    assert 'backbone.stages.0.0.se.fc.0.weight' in theirs
    assert theirs['backbone.stages.0.0.conv1.weight'].shape == (16, 20, 3, 3)
    ours = to_ours(theirs).entries
    assert ours.keys() == state.keys()
    assert all(torch.equal(ours[name], value) for name, value in state.items())


# Networks of other libraries, and ours that take their weights.
PLAIN = {
    'torchvision resnet18': (lambda: torchvision.models.resnet18(),
                             lambda **kw: RLAResNet(18, **kw)),
    'torchvision resnext50': (lambda: torchvision.models.resnext50_32x4d(),
                              lambda **kw: RLAResNeXt(depth=50, groups=32, base_width=4, **kw)),
    'torchvision mobilenet_v2': (lambda: torchvision.models.mobilenet_v2(), RLAMobileNetV2),
    'mmpretrain resnet': (lambda: mmpretrain.models.ResNet(50, base_channels=16, stem_channels=16),
                          lambda **kw: RLAResNet(50, base_channels=16, **kw)),
    'mmpretrain resnet v1c': (
        lambda: mmpretrain.models.ResNetV1c(depth=50, base_channels=16, stem_channels=16),
        lambda **kw: RLAResNetV1c(depth=50, base_channels=16, **kw)),
    'mmpretrain resnet v1d': (
        lambda: mmpretrain.models.ResNetV1d(depth=50, base_channels=16, stem_channels=16),
        lambda **kw: RLAResNetV1d(depth=50, base_channels=16, **kw)),
    'mmpretrain resnext': (lambda: mmpretrain.models.ResNeXt(50, groups=32, width_per_group=4),
                           lambda **kw: RLAResNeXt(depth=50, groups=32, base_width=4, **kw)),
    'mmpretrain mobilenet_v2': (lambda: mmpretrain.models.MobileNetV2(0.5),
                                lambda **kw: RLAMobileNetV2(0.5, **kw)),
    'timm resnet18': (lambda: timm.create_model('resnet18'), lambda **kw: RLAResNet(18, **kw)),
    'timm resnet50d': (
        lambda: timm.create_model('resnet50d', channels=(16, 32, 64, 128)),
        lambda **kw: RLAResNetV1d(depth=50, base_channels=16, stem_channels=64, **kw)),
    'timm resnet18c': (
        lambda: timm.models.resnet.ResNet(timm.models.resnet.BasicBlock, (2, 2, 2, 2),
                                          stem_type='deep', stem_width=32),
        lambda **kw: RLAResNetV1c(depth=18, **kw)),
    'mmdet resnet v1d': (lambda: mmdet.models.ResNetV1d(depth=50, base_channels=16),
                         lambda **kw: RLAResNetV1d(depth=50, base_channels=16, **kw)),
    'mmdet resnet': (lambda: mmdet.models.ResNet(18, base_channels=16, norm_eval=False),
                     lambda **kw: RLAResNet(18, base_channels=16, **kw)),
    'mmdet mobilenet_v2': (lambda: mmdet.models.MobileNetV2(0.5),
                           lambda **kw: RLAMobileNetV2(0.5, **kw)),
}


def last_features(net, image):
    """The last feature map of a network of any library."""
    if hasattr(net, 'features'):
        return net.features(image)
    if hasattr(net, 'forward_features'):  # timm
        return net.forward_features(image)
    if hasattr(net, 'avgpool'):  # torchvision's ResNet
        return torch.nn.Sequential(*list(net.children())[:-2])(image)
    return net(image)[-1]


@pytest.mark.parametrize('wrapped', [False, True])
@pytest.mark.parametrize('source', PLAIN)
def test_plain_weights_compute_the_same_with_and_without_a_hidden_path(source, wrapped, tmp_path,
                                                                       randomise):
    theirs, ours = PLAIN[source]
    theirs = randomise(theirs())
    theirs.eval()
    state = theirs.state_dict()
    if wrapped:  # in a classifier or detector, trained by several processes
        state = {f'module.backbone.{name}': value for name, value in state.items()}
        state['module.head.fc.weight'] = torch.ones(2, 2)
    torch.save(dict(state_dict=state), tmp_path / 'plain.pth')
    image = torch.randn(2, 3, 65, 97)
    with torch.no_grad():
        expected = last_features(theirs, image)
        for rla in (None, dict(channels=8)):
            net = ours(rla=rla, init_cfg=dict(type='Pretrained', checkpoint=str(
                tmp_path / 'plain.pth')))
            net.init_weights()
            assert_close(net.eval()(image)[-1], expected)


def convert(source, target, *arguments):
    result = subprocess.run(
        [sys.executable, REPO / 'tools/convert_weights.py', source, target, *arguments],
        text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.splitlines()[-1])


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_a_converted_file_says_what_it_is_and_goes_back(suffix, tmp_path):
    source = authors_file(tmp_path, 'r50_released')
    ours = convert(source, tmp_path / 'new' / f'rla{suffix}')
    assert ours == tmp_path / 'new' / f'rla{suffix}'
    assert [path.name for path in ours.parent.iterdir()] == [ours.name], 'a part was left behind'
    with pytest.raises(CheckpointError, match="rla.variant='v3'"):
        load_weights(RLAResNet(50), str(ours))
    report = load_weights(RLAResNet(50, rla=dict(variant='v3'), out_hidden=True), str(ours))
    assert report.initial == [] and report.adapted == {}
    back = convert(ours, tmp_path / 'theirs.pth', '--layout', 'authors')
    state = torch.load(back)['state_dict']
    expected = golden.weights('r50_released')
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_converted_detector_keeps_the_names_of_its_classes(tmp_path, randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=None))
    meta = dict(dataset_meta=dict(classes=('cat', 'dog')), epoch=12, cfg='a = 1')
    torch.save(dict(state_dict=net.state_dict(), meta=meta, optimizer={}), tmp_path / 'a.pth')
    for suffix in ('.pth', '.safetensors'):
        loaded = CheckpointLoader.load_checkpoint(
            str(convert(tmp_path / 'a.pth', tmp_path / f'b{suffix}')), 'cpu')
        assert loaded.keys() == {'state_dict', 'meta'} and loaded['meta'].keys() == {'dataset_meta'}
        assert list(loaded['meta']['dataset_meta']['classes']) == ['cat', 'dog']


def test_converting_says_in_one_line_what_is_wrong(tmp_path):
    path = tmp_path / 'text.pth'
    path.write_text('I am a text')
    result = subprocess.run(
        [sys.executable, REPO / 'tools/convert_weights.py', path, tmp_path / 'out.pth'],
        text=True, capture_output=True)
    assert result.returncode == 1
    assert [str(path) in line for line in result.stderr.splitlines()] == [True], result.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_weights_of_another_update_do_not_go_to_the_authors_program(randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4, variant='v1')))
    with pytest.raises(CheckpointError, match="computes rla=dict.variant='v3'"):
        to_authors(to_ours(net.state_dict()))
    with pytest.raises(CheckpointError, match='plain network'):
        to_authors(to_ours(RLAResNet(18, base_channels=8, rla=None).state_dict()))
    for key, value in (('cell', 'lstm'), ('pre_act', False), ('exchange', False)):
        rla = dict(channels=4, variant='v3', **{key: value})
        other = RLAResNet(18, base_channels=8, rla=rla, out_hidden=True)
        with pytest.raises(CheckpointError, match=f'trained with rla=dict.{key}='):
            to_authors(to_ours(other.state_dict()))


def test_no_two_rules_of_a_layout_lead_to_one_place():
    manifest = json.loads((REPO / 'tests/support/golden/manifest.json').read_text())
    for case in ('r50_eca_released', 'mbv2'):
        weights = to_ours({name: torch.zeros(shape) for name, shape in manifest[case].items()})
        size = sum(value.numel() for value in weights.entries.values())
        shared = 2 * 32 * 9 if case == 'mbv2' else 0  # two of the recurrent convolutions
        counters = sum(name.endswith('num_batches_tracked') for name in weights.entries) - sum(
            name.endswith('num_batches_tracked') for name in manifest[case])
        expected = sum(torch.zeros(shape).numel() for shape in manifest[case].values())
        assert size == expected + shared + counters


def test_every_layout_is_recognised_by_its_marks():
    titles = {layout.title for layout in layouts.LAYOUTS}
    assert len(titles) == len(layouts.LAYOUTS) == 8
    assert to_ours(golden.weights('mbv2')).layout is layouts.AUTHORS_MOBILENET_V2
    assert to_ours(golden.weights('r50_paper')).layout is layouts.AUTHORS_RESNET
    for source, layout in (('torchvision mobilenet_v2', layouts.TORCHVISION_MOBILENET_V2),
                           ('mmpretrain mobilenet_v2', layouts.MMPRETRAIN_MOBILENET_V2),
                           ('mmpretrain resnet v1c', layouts.MMPRETRAIN_RESNET_V1C),
                           ('mmpretrain resnet v1d', layouts.MMPRETRAIN_RESNET_V1D),
                           ('timm resnet50d', layouts.TIMM_DEEP_STEM),
                           ('timm resnet18c', layouts.TIMM_DEEP_STEM),
                           ('mmdet resnet v1d', layouts.OWN),
                           ('mmpretrain resnet', layouts.OWN),
                           ('mmdet mobilenet_v2', layouts.OWN)):
        assert to_ours(PLAIN[source][0]().state_dict()).layout is layout
