"""Residual blocks found by one dry run: which, in which networks, and which not."""
import copy

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import nn

from mmrla.models import WithRLA
from mmrla.models.residual_blocks import find_residual_blocks
from support import load_tool

FAMILIES = load_tool('dev/measure_with_rla').FAMILIES
# Blocks of each stage, and the entry, branch and shortcuts of all blocks.
EXPECTED = {
    'ResNet-18': ([2, 2, 2, 2], {'conv1'}, {'bn2'}, {'', 'downsample'}),
    'ResNet-50': ([3, 4, 6, 3], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'ResNeXt-50 32x4d': ([3, 4, 6, 3], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'RegNetX-3.2GF': ([2, 6, 15, 2], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'Res2Net-50': ([3, 4, 6, 3], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'ResNeSt-50': ([3, 4, 6, 3], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'DetectoRS ResNet-50': ([3, 4, 6, 3], {'conv1'}, {'bn3'}, {'', 'downsample'}),
    'Darknet-53': ([1, 2, 8, 8, 4], {'conv1.conv'}, {'conv2'}, {''}),
    'CSPDarknet': ([1, 3, 3], {'conv1.conv'}, {'conv2'}, {''}),
    'CSPNeXt-s': ([1, 2, 2], {'conv1.conv'}, {'conv2'}, {''}),
    'MobileNetV2': ([1, 2, 3, 2, 2], {'expand_conv.conv'}, {'drop_path'}, {''}),
    'HRNet-W18': ([4, 32], {'conv1'}, {'bn2', 'bn3'}, {'', 'downsample'}),
    'SE-ResNet-50': ([3, 4, 6, 3], {'conv1'}, {'se_layer'}, {'', 'downsample'}),
    'MobileNetV3-L': ([1, 1, 2, 3, 1, 2], {'expand_conv.conv', 'depthwise_conv.conv'},
                      {'drop_path'}, {''}),
    'EfficientNet-B0': ([1, 1, 2, 2, 3], {'expand_conv.conv'}, {'drop_path'}, {''}),
    'EfficientNetV2-S': ([2, 3, 3, 5, 8, 14], {'conv', 'conv1.conv', 'expand_conv.conv'},
                         {'drop_path'}, {''}),
    'ConvNeXt-T': ([3, 3, 9, 3], {'depthwise_conv'}, {'drop_path'}, {''}),
    'CSPResNet-50': ([3, 3, 5, 2], {'conv1'}, {'drop_path'}, {''}),
    'ConvMixer-768/32': ([32], {'fn.0'}, {'fn'}, {''}),
    'timm ResNet-RS-50': ([3, 4, 6, 3], {'conv1'}, {'se'}, {'', 'downsample'}),
    'timm ResNetV2-50, pre-activated': ([3, 4, 6, 3], {'conv1'}, {'drop_path'},
                                        {'', 'downsample'}),
    'timm ECA-NFNet-L0': ([1, 2, 6, 3], {'conv1'}, {None}, {'', 'downsample'}),
    'timm RegNetY-400MF': ([1, 3, 6, 6], {'conv1.conv'}, {'drop_path'}, {'', 'downsample'}),
    'timm Xception-41': ([1, 1, 9, 1], {'stack.conv1.conv_dw'}, {'stack'}, {'', 'shortcut'}),
    'timm TResNet-M': ([3, 4, 11, 3], {'conv1.conv'}, {'drop_path'}, {'', 'downsample'}),
}


def build(name):
    if name.startswith('timm'):
        pytest.importorskip('timm')
    # Its convolutions save copies of their weights for backward, 0.7 GB at full width.
    narrow = dict(base_channels=16) if name.startswith('DetectoRS') else {}
    return MODELS.build({**copy.deepcopy(FAMILIES[name]), **narrow})


def tensors(outs):
    return list(outs) if isinstance(outs, (tuple, list)) else [outs]


def randomised(network):
    """Values that hide nothing: a branch that starts at zero has no gradient."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith('gain') or (parameter.dim() < 2 and not name.endswith('bias')):
                parameter.uniform_(0.5, 1.0)
    return network


def runs(network, image):
    """The outputs of a plain network; None for a size that it does not take."""
    try:
        return tensors(network(image))
    except RuntimeError:
        return None


def labelled(*labels):
    from mmpretrain.structures import DataSample
    return [DataSample().set_gt_label(label) for label in labels]


def test_every_measured_family_is_tested():
    assert list(EXPECTED) == list(FAMILIES)


@pytest.mark.parametrize('name', EXPECTED)
def test_a_family_is_found_starts_equal_and_trains(name):
    plain = randomised(build(name))
    plain.norm_eval = False  # random weights need norms that learn
    net = WithRLA(copy.deepcopy(plain), rla=dict(channels=4), out_hidden=True)
    blocks = [step.block for step in net._steps]
    counts = [sum(step.stage is stage for step in net._steps) for stage in net.rla]
    found = [{getattr(block, key) for block in blocks} for key in ('entry', 'branch', 'shortcut')]
    assert (counts, *found) == EXPECTED[name]

    plain.eval(), net.eval()
    taken = 0
    for size in ((64, 96), (128, 96), (97, 131)):
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected = runs(plain, image)
        if expected is not None:
            taken += 1
            with torch.no_grad():
                *outs, h = net(image)
            assert all(map(torch.equal, outs, expected))
            assert h.shape[:2] == (1, 4) and h.isfinite().all()
    assert taken
    del plain

    classifier = MODELS.build(dict(
        type='mmpretrain.ImageClassifier', backbone=net, neck=dict(type='RLAPooling', channels=4),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=3,
                  in_channels=outs[-1].shape[1] + 4))).train()
    optimizer = torch.optim.SGD(classifier.parameters(), 0.1)
    size = (128, 128) if name.startswith('DetectoRS') else (64, 64)
    for _ in range(2):
        loss = classifier(torch.randn(2, 3, *size), labelled(0, 2), mode='loss')['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite()
    dead = [key for key, p in net.rla.named_parameters()
            if p.grad is None or p.grad.abs().max() == 0]
    assert dead == ['0.readers.0.weight']  # h is zero before the first block


class Block(nn.Module):
    """A residual block whose parts have unusual names."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.skip = nn.Conv2d(4, 4, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        if self.kind == 'twice':
            return x + self.b(self.a(self.a(x)))
        if self.kind == 'side by side':
            return F.relu(self.a(x) + self.b(x) + x)
        if self.kind == 'projected first':
            skip = self.skip(F.relu(x))
            return skip + self.b(F.relu(self.a(F.relu(x))))
        y = self.b(F.relu(self.a(x)))
        if self.kind == 'scaled':
            return x + self.scale * y
        if self.kind == 'scaled and activated':
            return F.relu(x + self.scale * y)
        if self.kind == 'in place':
            y += x
            return y.relu_()
        if self.kind == 'concatenated':
            return torch.cat([x[:, :2], y[:, 2:]], 1)
        return y + x


class Net(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(*map(Block, kinds))

    def forward(self, x):
        return (self.body(self.stem(x)),)


@pytest.mark.parametrize('kind, parts', [
    ('plain', ('a', 'b', '', ('out', 'residual', 'shortcut'))),
    ('in place', ('a', 'b', '', ('out', 'residual', 'shortcut'))),
    ('scaled', ('a', None, '', ('out', 'residual', 'shortcut'))),
    ('scaled and activated', ('a', None, '', ('out', 'shortcut'))),
    ('projected first', ('a', 'b', 'skip', ('out', 'residual', 'shortcut'))),
])
def test_the_parts_of_a_block_are_found_by_what_they_do(kind, parts):
    block, = find_residual_blocks(Net(kind))
    assert (block.entry, block.branch, block.shortcut, tuple(block.sources())) == parts
    assert ('branch' in block.changed) == (kind == 'in place')


def test_y_of_a_scaled_branch_is_the_output_minus_the_shortcut():
    torch.manual_seed(1)
    net = WithRLA(Net('scaled', 'scaled').double(), rla=dict(channels=2), out_hidden=True)
    net.eval()
    nn.init.normal_(net.body[0].scale)
    image = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    seen = []
    net.rla[0].norms[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net(image)
    x, block = net.stem(image), net.body[0]
    y = block.scale * block.b(F.relu(block.a(x)))
    torch.testing.assert_close(seen[0], net.rla[0].compress(y), rtol=1e-9, atol=1e-9)


def test_a_variant_that_a_block_does_not_show_is_refused_with_the_others():
    with pytest.raises(ValueError) as error:
        WithRLA(Net('scaled and activated'), out_hidden=True)
    assert "rla.variant='v1'" in str(error.value)
    assert 'choose one of: v3, v4, v5, v6' in str(error.value)


@pytest.mark.parametrize('kind', ['twice', 'side by side', 'concatenated'])
def test_what_is_no_residual_block_is_refused(kind):
    with pytest.raises(ValueError, match='no residual block .* Searched for.*blocks='):
        find_residual_blocks(Net(kind))


def test_a_shortcut_around_blocks_leaves_the_blocks():
    class Group(Net):
        def forward(self, x):
            x = self.stem(x)
            return x + self.body(x)

    assert [block.name for block in find_residual_blocks(Group('plain', 'plain'))] == [
        'body.0', 'body.1']


class Halves(nn.Module):
    """A block of two halves, of which the first has a residual part, as in a VAN."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.mlp = nn.BatchNorm2d(4), Block('plain'), nn.Conv2d(4, 4, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        x = x + self.scale * self.attention(self.norm(x))
        return x + self.mlp(x)


def test_a_part_of_a_branch_is_no_block_unless_it_is_named():
    net = Net('plain')
    net.body.append(Halves())
    assert [block.name for block in find_residual_blocks(net)] == ['body.0']
    named = find_residual_blocks(net, blocks=[dict(block=r'body\.1\.attention')])
    assert [block.name for block in named] == ['body.1.attention']


def test_blocks_that_no_output_depends_on_are_left_alone():
    class Early(Net):
        def forward(self, x):
            x = self.body[0](self.stem(x))
            self.body[1](x)
            return x

    assert [block.name for block in find_residual_blocks(Early('plain', 'plain'))] == ['body.0']


NOT_RESIDUAL = {
    'VGG': dict(type='mmpretrain.VGG', depth=11),
    'SSD-VGG': dict(type='mmdet.SSDVGG', depth=16),
    'AlexNet': dict(type='mmpretrain.AlexNet'),
    'Swin': dict(type='mmdet.SwinTransformer', embed_dims=24, depths=(2, 2, 2, 2),
                 num_heads=(1, 2, 4, 8)),
    'PVT': dict(type='mmdet.PyramidVisionTransformerV2', embed_dims=8, num_layers=[1, 1, 1, 1]),
    'ViT': dict(type='mmpretrain.VisionTransformer', arch='deit-t', img_size=64),
    'DenseNet': dict(type='mmpretrain.DenseNet', arch='121', out_indices=(3,)),
    'ShuffleNetV2': dict(type='mmpretrain.ShuffleNetV2'),
    'PoolFormer': dict(type='mmpretrain.PoolFormer', arch='s12'),
    'RepVGG': dict(type='mmpretrain.RepVGG', arch='A0'),
    'VAN': dict(type='mmpretrain.VAN', arch='tiny'),
    'MobileOne': dict(type='mmpretrain.MobileOne', arch='s0'),
    'Hourglass': dict(type='mmdet.HourglassNet', downsample_times=2, num_stacks=1,
                      stage_channels=(16, 16, 16), stage_blocks=(1, 1, 1), feat_channel=16),
}


@pytest.mark.parametrize('name', NOT_RESIDUAL)
def test_other_networks_are_refused_with_one_clear_line(name):
    with pytest.raises(ValueError) as error:
        MODELS.build(dict(type='WithRLA', backbone=NOT_RESIDUAL[name]))
    text = str(error.value)
    assert '\n' not in text and 'blocks=' in text
    assert ('parallel' if name == 'Hourglass' else 'no residual block') in text


def test_a_network_without_convolutions_is_refused():
    with pytest.raises(ValueError, match='Linear has no Conv2d'):
        WithRLA(nn.Linear(12, 3))


def test_a_config_names_the_blocks():
    net = Net('side by side', 'plain', 'plain')
    assert [block.name for block in find_residual_blocks(
        net, blocks=[dict(block=r'body\.2')])] == ['body.2']
    first, second = find_residual_blocks(net, blocks=[
        dict(block=r'body\.0', entry='b', shortcut=''), dict(block=r'body\.1', branch='b')])
    assert (first.entry, first.branch, first.shortcut) == ('b', None, '')
    assert (second.entry, second.branch, second.shortcut) == ('a', 'b', '')


@pytest.mark.parametrize('cfg, text', [
    (dict(block=r'layer\d'), r"block='layer\\\\d' is the name of no module"),
    (dict(entry='a'), 'has no key "block"'),
    (dict(block='body.0', entri='a'), "no key 'entri'"),
    (dict(block='body.0', entry='c'), "entry='c' is not a module"),
    (dict(block='body', entry='0'), 'must be a Conv2d'),
    (dict(block='body.0'), 'no entry convolution was found in body.0'),
    (dict(block='body.1', branch='skip'), "branch='skip' is not a module"),
])
def test_a_wrong_name_is_told(cfg, text):
    with pytest.raises(ValueError, match=text):
        find_residual_blocks(Net('side by side', 'plain'), blocks=[cfg])


def test_the_dry_run_changes_nothing():
    net = build('ResNet-18')
    net.train()
    net.layer1[0].with_cp = True
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    seed = torch.get_rng_state()
    assert len(find_residual_blocks(net)) == 8
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert net.layer1[0].with_cp and torch.equal(torch.get_rng_state(), seed)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
