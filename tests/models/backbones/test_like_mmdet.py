"""What a user of mmdet's ResNet, ResNeXt and MobileNetV2 finds in ours: arguments, attributes,
blocks, freezing, norm modes, plugins, deformable convolutions, recomputation, errors.
"""
import copy
import inspect

import mmdet.models.backbones as theirs
import pytest
import torch
from mmcv.ops import DeformConv2dPack, ModulatedDeformConv2dPack
from mmdet.models.backbones import resnet as their_resnet
from mmdet.models.backbones import resnext as their_resnext
from mmdet.models.layers import ResLayer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmrla.models import RLAMobileNetV2, RLAResNet, RLAResNetV1d, RLAResNeXt
from mmrla.models.backbones import mobilenet_v2, resnet, resnext
from support.memory import saved_sizes

NARROW = dict(depth=50, base_channels=8)
CONTEXT = dict(type='ContextBlock', ratio=1. / 16)
ATTENTION = dict(type='GeneralizedAttention', spatial_range=-1, num_heads=8,
                 attention_type='0010', kv_stride=2)
PLUGINS = [
    dict(cfg=ATTENTION, stages=(False, True, True, True), position='after_conv2'),
    dict(cfg=dict(type='NonLocal2d'), position='after_conv2'),
    dict(cfg=CONTEXT, stages=(False, True, True, False), position='after_conv3')]
POSTFIXES = [
    dict(cfg=ATTENTION, position='after_conv2'),
    *(dict(cfg=dict(CONTEXT, postfix=postfix), position=position) for postfix, position in (
        (1, 'after_conv2'), (2, 'after_conv3'), (3, 'after_conv3')))]
DCN = dict(type='DCN', deform_groups=1, fallback_on_stride=False)
PAIRS = {
    'ResNet': (RLAResNet, theirs.ResNet), 'ResNetV1d': (RLAResNetV1d, theirs.ResNetV1d),
    'ResNeXt': (RLAResNeXt, theirs.ResNeXt), 'MobileNetV2': (RLAMobileNetV2, theirs.MobileNetV2)}
BLOCKS = {
    'basic': (resnet.BasicBlock, their_resnet.BasicBlock),
    'bottleneck': (resnet.Bottleneck, their_resnet.Bottleneck),
    'grouped': (resnext.Bottleneck, their_resnext.Bottleneck)}
NETWORKS = {
    'defaults': ('ResNet', dict(depth=50)),
    'basic blocks': ('ResNet', dict(depth=34, frozen_stages=1, norm_eval=False)),
    'all arguments': ('ResNet', dict(
        NARROW, in_channels=1, stem_channels=16, num_stages=3, strides=(1, 2, 1),
        dilations=(1, 1, 2), out_indices=range(1, 3), style='caffe', avg_down=True, with_cp=True,
        zero_init_residual=False, plugins=[dict(cfg=CONTEXT, position='after_conv3')])),
    'deformable': ('ResNet', dict(NARROW, dcn=dict(type='DCNv2', deform_groups=1),
                                  stage_with_dcn=(False, True, True, True))),
    'V1d': ('ResNetV1d', dict(NARROW, norm_cfg=dict(type='GN', num_groups=2))),
    'ResNeXt': ('ResNeXt', dict(depth=101, groups=32, base_width=4)),
    'ResNeXt with defaults': ('ResNeXt', dict(depth=50)),
    'MobileNetV2': ('MobileNetV2', {}),
    'wide MobileNetV2': ('MobileNetV2', dict(
        widen_factor=2.0, out_indices=range(8), act_cfg=dict(type='ReLU'), norm_eval=True)),
}
# With a hidden path ours builds no layer after its last output, so that an attribute differs.
SHORTER = {
    'short MobileNetV2': ('MobileNetV2', dict(
        widen_factor=0.5, out_indices=(0, 2, 4), with_cp=True,
        norm_cfg=dict(type='GN', num_groups=2)))}
# Attributes of mmdet's that say nothing about the network: it sets them for its own use.
INTERNAL = {'block', 'training', 'init_cfg'}


def attributes(module):
    """The settings that a module keeps."""
    return {name: value for name, value in vars(module).items()
            if not name.startswith('_') and name not in INTERNAL}


def blocks_of(net):
    return [module for module in net.modules()
            if isinstance(module, (resnet.ResidualBlock, mobilenet_v2.InvertedResidual))]


def norms_of(net):
    return [module for module in net.modules() if isinstance(module, (_BatchNorm, nn.GroupNorm))]


@pytest.mark.parametrize('name', PAIRS)
def test_it_takes_mmdets_arguments(name):
    ours, expected = (inspect.signature(cls).parameters for cls in PAIRS[name])
    own = {key for key, value in ours.items() if value.kind is not value.VAR_KEYWORD}
    own |= set(inspect.signature(RLAResNet).parameters) if 'kwargs' in ours else set()
    assert {key for key in expected if key != 'kwargs'} <= own


@pytest.mark.parametrize('name', ['ResNet', 'MobileNetV2'])
def test_positional_arguments_have_mmdets_order(name):
    ours, expected = (list(inspect.signature(cls).parameters) for cls in PAIRS[name])
    assert ours[:len(expected)] == expected


@pytest.mark.parametrize('name', BLOCKS)
def test_the_arguments_of_a_block_have_mmdets_order(name):
    ours, expected = (list(inspect.signature(cls).parameters) for cls in BLOCKS[name])
    assert ours[:len(expected)] == expected


@pytest.mark.parametrize('rla', [None, dict(channels=32)])
@pytest.mark.parametrize('case', NETWORKS)
def test_it_has_mmdets_attributes_with_their_values(case, rla):
    name, arguments = NETWORKS[case]
    ours, expected = PAIRS[name]
    with torch.device('meta'):
        net, plain = ours(rla=rla, **arguments), expected(**arguments)
    found = attributes(net)
    for key, value in attributes(plain).items():
        if key == 'pretrained':  # its weights are in init_cfg
            continue
        assert key in found, f'{name} has no attribute {key}'
        assert found[key] == value, key


@pytest.mark.parametrize('name, arguments', [
    ('basic', dict(stride=2, dilation=1)),
    ('bottleneck', dict(stride=2, style='caffe', with_cp=True)),
    ('bottleneck', dict(dilation=2, plugins=[dict(cfg=CONTEXT, position='after_conv3')])),
    ('bottleneck', dict(plugins=POSTFIXES)),
    ('bottleneck', dict(dcn=DCN)),
    ('grouped', dict(groups=32, base_width=4, plugins=PLUGINS[:1])),
    ('grouped', dict(groups=4, base_width=4, base_channels=16)),
    ('grouped', dict(groups=4, base_width=8, base_channels=16, plugins=[
        dict(cfg=dict(type='NonLocal2d'), position='after_conv1')]))])
def test_a_block_alone_is_mmdets_block(name, arguments):
    built = []
    for cls in BLOCKS[name]:
        torch.manual_seed(0)
        channels = 16 * cls.expansion
        stride = arguments.get('stride', 1)
        downsample = nn.Conv2d(channels, channels, 1, stride=2) if stride == 2 else None
        built.append(cls(channels, 16, downsample=downsample, **copy.deepcopy(arguments)))
    ours, expected = built
    # mmdet's takes a key out of dcn, and keeps the plugins by place too.
    unused = {'dcn', 'with_modulated_dcn', *(key for key in vars(expected) if 'after_' in key)}
    kept = {key: value for key, value in attributes(expected).items() if key not in unused}
    assert {key: attributes(ours).get(key) for key in kept} == kept
    assert list(ours.state_dict()) == list(expected.state_dict())
    x = torch.randn(2, ours.inplanes, 14, 14)
    out = ours(x)
    assert type(out) is torch.Tensor
    assert torch.equal(out, expected(x)), 'a seed gives other values'


@pytest.mark.parametrize('name, planes, arguments', [
    ('bottleneck', 4, {}), ('bottleneck', 8, {}), ('bottleneck', 8, dict(stride=2)),
    ('bottleneck', 8, dict(stride=2, avg_down=True, with_cp=True)),
    ('basic', 16, dict(stride=2, downsample_first=False)),
    ('grouped', 8, dict(stride=2, groups=4, base_channels=8))])
def test_mmdets_res_layer_takes_our_blocks(name, planes, arguments):
    built = []
    for cls in BLOCKS[name]:
        torch.manual_seed(0)
        built.append(ResLayer(cls, 16, planes, 3, **arguments))
    ours, expected = built
    assert [type(block) for block in ours] == [BLOCKS[name][0]] * 3
    assert list(ours.state_dict()) == list(expected.state_dict())
    x = torch.randn(2, 16, 14, 14)
    assert torch.equal(ours(x), expected(x))


@pytest.mark.parametrize('case', [*NETWORKS, *SHORTER])
def test_with_a_hidden_path_the_outputs_have_mmdets_shapes(case):
    name, arguments = {**NETWORKS, **SHORTER}[case]
    ours, expected = PAIRS[name]
    # mmcv's deformable convolution has no kernel for the meta device.
    with torch.device('cpu' if 'dcn' in arguments else 'meta'):
        net, plain = ours(rla=dict(channels=8), **arguments), expected(**arguments)
        net.train(), plain.train()
        image = torch.randn(1, arguments.get('in_channels', 3), 64, 96)
        shapes = [[out.shape for out in network(image)] for network in (net, plain)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize('style, strides', [('pytorch', [(1, 1), (2, 2)]),
                                            ('caffe', [(2, 2), (1, 1)])])
@pytest.mark.parametrize('block', [resnet.Bottleneck, resnext.Bottleneck])
def test_the_style_says_which_convolution_has_the_stride(block, style, strides):
    layer = block(64, 64, stride=2, style=style)
    assert [layer.conv1.stride, layer.conv2.stride] == strides


@pytest.mark.parametrize('groups, base_width, width', [(1, 4, 64), (32, 4, 128), (64, 4, 256)])
def test_the_width_of_a_grouped_block(groups, base_width, width):
    block = resnext.Bottleneck(256, 64, groups=groups, base_width=base_width)
    assert (block.conv2.in_channels, block.conv2.groups) == (width, groups)
    assert block.conv3.out_channels == 256
    assert block(torch.randn(1, 256, 8, 8)).shape == (1, 256, 8, 8)


@pytest.mark.parametrize('build, arguments', [
    (resnet.BasicBlock, dict(inplanes=8, planes=8)),
    (resnet.Bottleneck, dict(inplanes=32, planes=8)),
    (resnext.Bottleneck, dict(inplanes=32, planes=8, groups=2, base_channels=8)),
    (mobilenet_v2.InvertedResidual,
     dict(in_channels=8, out_channels=8, stride=1, expand_ratio=6))])
def test_a_block_recomputes_with_cp(build, arguments):
    gradients, saved = [], []
    for with_cp in (False, True):
        torch.manual_seed(0)
        block = build(**arguments, with_cp=with_cp)
        assert block.with_cp is with_cp
        x = torch.randn(2, next(iter(arguments.values())), 9, 9, requires_grad=True)
        with saved_sizes() as sizes:
            out = block(x)
        out.square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in block.parameters())])
        saved.append(sum(sizes))
    for recomputed, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, expected)
    assert saved[1] < saved[0]


@pytest.mark.parametrize('rla', [None, dict(channels=4)])
@pytest.mark.parametrize('build', [
    lambda **kw: RLAResNet(18, base_channels=8, **kw),
    lambda **kw: RLAResNeXt(**NARROW, groups=2, **kw), lambda **kw: RLAMobileNetV2(0.25, **kw)])
def test_every_block_knows_with_cp(build, rla):
    assert all(block.with_cp for block in blocks_of(build(with_cp=True, rla=rla)))
    assert not any(block.with_cp for block in blocks_of(build(rla=rla)))


@pytest.mark.parametrize('block, arguments, parts', [
    (resnet.BasicBlock, dict(dcn=DCN), ('dcn=', 'bottleneck')),
    (resnet.BasicBlock, dict(plugins=PLUGINS), ('plugins=', 'bottleneck')),
    (resnet.Bottleneck, dict(style='tensorflow'), ("style='tensorflow'", "'caffe'")),
    (resnet.Bottleneck, dict(plugins=[dict(cfg=CONTEXT, position='after_conv4')]),
     ("'after_conv4'", "'after_conv3'")),
    (resnet.Bottleneck, dict(plugins=[dict(cfg=CONTEXT, position='after_conv3')] * 2),
     ("'context_block'", 'postfix')),
    (resnet.Bottleneck, dict(dcn=DCN, conv_cfg=dict(type='Conv')), ('conv_cfg=', 'dcn=')),
    (resnext.Bottleneck, dict(dcn=DCN, conv_cfg=dict(type='Conv'), groups=32),
     ('conv_cfg=', 'dcn=')),
    (resnext.Bottleneck, dict(style='tensorflow', groups=32), ("style='tensorflow'",))])
def test_a_wrong_argument_of_a_block_is_named(block, arguments, parts):
    with pytest.raises(ValueError) as error:
        block(64, 64, **arguments)
    for part in parts:
        assert part in str(error.value)


def test_an_unknown_plugin_is_mmcvs_error():
    with pytest.raises(KeyError):
        resnet.Bottleneck(64, 16, plugins=[
            dict(cfg=dict(type='WrongPlugin'), position='after_conv3')])


@pytest.mark.parametrize('pretrained', [0, 1, True, ['a.pth'], dict(checkpoint='a.pth')])
@pytest.mark.parametrize('build', [
    lambda **kw: RLAResNet(18, **kw), lambda **kw: RLAResNeXt(depth=50, **kw), RLAMobileNetV2])
def test_pretrained_that_is_no_path_is_refused_at_once(build, pretrained):
    with pytest.raises(TypeError, match='pretrained=.* must be a path'), torch.device('meta'):
        build(pretrained=pretrained)


def test_pretrained_is_an_init_cfg():
    with torch.device('meta'):
        net = RLAResNet(18, pretrained='torchvision://resnet18')
    assert net.init_cfg == dict(type='Pretrained', checkpoint='torchvision://resnet18')


@pytest.mark.parametrize('rla, package, zero', [
    (None, 'mmdet', False), (None, 'mmpretrain', True), (dict(channels=8), 'mmdet', True)])
def test_a_plain_resnext_starts_from_the_values_of_its_package(rla, package, zero):
    net = RLAResNeXt(depth=50, base_channels=4, groups=2, rla=rla, defaults=package)
    net.init_weights()
    blocks = blocks_of(net)
    assert len(blocks) == 16
    assert all((block.norm3.weight == 0).all() == zero for block in blocks)


@pytest.mark.parametrize('arguments', [
    dict(groups=4, base_width=4, base_channels=16),
    dict(groups=1, base_channels=8, zero_init_residual=False),
    dict(groups=4, base_width=4, base_channels=16, style='caffe', deep_stem=True, avg_down=True),
    dict(groups=4, base_width=4, base_channels=16, plugins=PLUGINS),
    dict(groups=2, base_width=4, base_channels=16, dcn=dict(type='DCNv2', deform_groups=1),
         stage_with_dcn=(False, False, True, True))])
def test_a_seed_gives_a_resnext_mmdets_values(arguments):
    nets = []
    for build in (lambda **kw: RLAResNeXt(rla=None, **kw), theirs.ResNeXt):
        torch.manual_seed(0)
        net = build(depth=50, **arguments)
        net.init_weights()
        nets.append(net.state_dict())
    ours, expected = nets
    assert list(ours) == list(expected)
    for name, value in expected.items():
        assert torch.equal(ours[name], value), f'{name} starts differently'


@pytest.mark.parametrize('rla', [None, dict(channels=8)])
@pytest.mark.parametrize('depth, norm', [(18, 'norm2'), (50, 'norm3')])
def test_zero_init_residual(depth, norm, rla):
    for zero in (True, False):
        net = RLAResNet(depth, base_channels=4, zero_init_residual=zero, rla=rla)
        net.init_weights()
        for block in blocks_of(net):
            values = torch.cat([p.flatten() for p in getattr(block, norm).parameters()])
            assert (values == 0).all() == zero


@pytest.mark.parametrize('rla', [None, dict(channels=8)])
@pytest.mark.parametrize('build', [
    lambda **kw: RLAResNet(**NARROW, **kw), lambda **kw: RLAResNeXt(**NARROW, groups=2, **kw),
    lambda **kw: RLAResNet(**NARROW, pretrained='torchvision://resnet50', **kw),
    lambda **kw: RLAMobileNetV2(0.25, **kw)])
def test_norm_eval_sets_the_mode_of_every_norm(build, rla):
    for norm_eval in (True, False):
        net = build(norm_eval=norm_eval, rla=rla)
        net.train()
        assert {norm.training for norm in norms_of(net)} == {not norm_eval}
        net.eval()
        assert not any(norm.training for norm in norms_of(net))


@pytest.mark.parametrize('deep_stem', [False, True])
@pytest.mark.parametrize('rla', [None, dict(channels=8)])
def test_frozen_stages_do_not_train(rla, deep_stem):
    net = RLAResNet(**NARROW, frozen_stages=1, norm_eval=False, deep_stem=deep_stem, rla=rla)
    net.train()
    frozen = [*([net.stem] if deep_stem else [net.conv1, net.norm1]), net.layer1]
    if deep_stem:
        assert len(net.stem) == 9
    for part in frozen:
        assert not any(p.requires_grad for p in part.parameters())
        assert not any(norm.training for norm in norms_of(part))
    assert all(p.requires_grad for p in net.layer2.parameters())
    assert all(norm.training for norm in norms_of(net.layer2))


def test_the_stem():
    net = RLAResNet(50, stem_channels=4)
    assert (net.stem_channels, net.conv1.out_channels, net.layer1[0].conv1.in_channels) == (4, 4, 4)
    assert net.norm1.num_features == 4
    deep = RLAResNetV1d(depth=50, stem_channels=6, base_channels=2)
    assert [(layer.in_channels, layer.out_channels) for layer in deep.stem[::3]] == [
        (3, 3), (3, 3), (3, 6)]
    assert [norm.num_features for norm in deep.stem[1::3]] == [3, 3, 6]


@pytest.mark.parametrize('avg_down', [False, True])
def test_the_shortcut_of_a_stage(avg_down):
    first, second, *_ = RLAResNet(50, avg_down=avg_down, base_channels=16).layer2
    pool, conv, _ = first.downsample if avg_down else [None, *first.downsample]
    assert (conv.in_channels, conv.out_channels) == (64, 128)
    assert conv.stride == ((1, 1) if avg_down else (2, 2))
    assert pool is None or isinstance(pool, nn.AvgPool2d) and pool.stride == 2
    assert second.downsample is None


@pytest.mark.parametrize('rla', [None, dict(channels=8)])
def test_plugins_are_in_the_stages_and_places_they_name(rla):
    net = RLAResNet(**NARROW, plugins=PLUGINS, rla=rla)
    for i, stage in enumerate(net.stages_with_blocks()):
        for block in stage:
            width = 8 * 2**i
            assert block.nonlocal_block.in_channels == width
            assert hasattr(block, 'gen_attention_block') == (i > 0)
            assert hasattr(block, 'context_block') == (0 < i < 3)
            if 0 < i < 3:
                assert block.gen_attention_block.in_channels == width
                assert block.context_block.in_channels == 4 * width
    outs = net(torch.randn(1, 3, 64, 64))
    assert [out.shape[1:] for out in outs] == [(32, 16, 16), (64, 8, 8), (128, 4, 4), (256, 2, 2)]


@pytest.mark.parametrize('kind, layer', [('DCN', DeformConv2dPack),
                                         ('DCNv2', ModulatedDeformConv2dPack)])
@pytest.mark.parametrize('build', [
    lambda **kw: RLAResNet(**NARROW, **kw), lambda **kw: RLAResNeXt(**NARROW, groups=4, **kw)])
def test_deformable_convolutions_are_in_the_stages_they_name(build, kind, layer):
    net = build(dcn=dict(type=kind, deform_groups=1), stage_with_dcn=(False, True, False, True))
    for with_dcn, stage in zip(net.stage_with_dcn, net.stages_with_blocks(), strict=True):
        assert all(isinstance(block.conv2, layer) == with_dcn for block in stage)


def test_a_deformable_convolution_can_fall_back():
    block = resnet.Bottleneck(64, 64, dcn=dict(DCN, fallback_on_stride=True))
    assert type(block.conv2) is nn.Conv2d


@pytest.mark.parametrize('arguments, parts', [
    (dict(num_stages=0), ('num_stages=0', '1, 2, 3, 4')),
    (dict(num_stages=3, strides=(1,), dilations=(1, 1)), ('strides=(1,)', 'num_stages=3')),
    (dict(dcn=DCN, stage_with_dcn=(True,)), ('stage_with_dcn=(True,)', 'num_stages=4')),
    (dict(plugins=[dict(cfg=CONTEXT, stages=(False, True, True), position='after_conv3')]),
     ('the stages of a plugin', 'num_stages=4')),
    (dict(drop_path_rate=1.5), ('drop_path_rate=1.5', '0 to below 1')),
    (dict(expansion=0), ('expansion=0', '1 or more')),
    (dict(defaults='mmseg'), ("defaults='mmseg'", "'mmpretrain'"))])
def test_a_wrong_argument_is_named(arguments, parts):
    with pytest.raises(ValueError) as error, torch.device('meta'):
        RLAResNet(50, **arguments)
    for part in parts:
        assert part in str(error.value)


def test_a_resnext_needs_bottlenecks():
    with pytest.raises(ValueError, match='depth=18 .*: 50, 101, 152'):
        RLAResNeXt(depth=18)


@pytest.mark.parametrize('arguments, part', [
    (dict(frozen_stages=8), 'frozen_stages=8'), (dict(out_indices=[8]), '8')])
def test_a_wrong_argument_of_a_mobilenet_is_named(arguments, part):
    with pytest.raises(ValueError, match=part):
        RLAMobileNetV2(**arguments)


@pytest.mark.parametrize('norm_cfg, kind', [
    (dict(type='BN'), _BatchNorm), (dict(type='GN', num_groups=2), nn.GroupNorm)])
@pytest.mark.parametrize('build', [
    lambda **kw: RLAResNet(**NARROW, out_indices=(0, 2), **kw),
    lambda **kw: RLAMobileNetV2(0.25, out_indices=(0, 2, 4), **kw)])
def test_every_norm_is_of_the_configs_type(build, norm_cfg, kind):
    net = build(norm_cfg=norm_cfg)
    assert all(isinstance(norm, kind) for norm in norms_of(net))
    assert [out.shape[0] for out in net(torch.randn(1, 3, 64, 64))] == [1] * len(net.out_indices)
