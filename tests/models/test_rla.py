"""The paper's update, compared with the authors' outputs and the plain equations."""
import copy

import pytest
import torch
import torch.nn.functional as F
from mmengine.runner.checkpoint import get_state_dict

from mmrla.models import VARIANTS, RLAResNet, RLAResNeXt
from mmrla.weights.layouts import to_ours
from support import golden

pytestmark = pytest.mark.usefixtures('each_device')

GOLDEN = {
    'r50_paper': dict(rla=dict(variant='v1')),
    'r50_released': dict(rla=dict(variant='v3')),
    'r50_eca_released': dict(rla=dict(variant='v3'), attention=dict(type='ECA')),
    'r50_v2': dict(rla=dict(variant='v2')),
    'r50_v5': dict(rla=dict(variant='v5')),
}


@pytest.mark.parametrize('case', GOLDEN)
def test_stage_outputs_are_those_of_the_authors_code(case):
    net = RLAResNet(50, out_hidden=True, **GOLDEN[case]).eval()
    net.load_state_dict(to_ours(golden.weights(case)).backbone)
    with torch.no_grad():
        outs = net(golden.image())
    for i, out in enumerate(outs[:4], 1):
        expected = torch.as_tensor(golden.figures(case)[f'stage{i}'])
        error = (out - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, f'stage {i} is off by {error:.1e} of its largest value'


def test_v1_and_v3_differ_unlike_in_the_authors_code():
    state = to_ours(golden.weights('r50_paper')).backbone
    outs = []
    for variant in ('v1', 'v3'):
        net = RLAResNet(50, rla=dict(variant=variant)).eval()
        net.load_state_dict(state, strict=False)
        with torch.no_grad():
            outs.append(net(golden.image())[-1])
    assert (outs[0] - outs[1]).abs().max() > 0.01 * outs[0].abs().max()


def conv_of_concat(block, reader, x, h):
    """The first convolution as the paper writes it, on Concat(x, h)."""
    weight = torch.cat([block.conv1.weight, reader.weight], 1)
    return F.conv2d(torch.cat([x, h], 1), weight, None, block.conv1.stride,
                    block.conv1.padding, block.conv1.dilation)


def plain_forward(net, image, variant):
    """The equations of section 3.3 written down, stage by stage."""
    x = F.max_pool2d(F.relu(net.bn1(net.conv1(image))), 3, 2, 1)
    h = torch.zeros(x.shape[0], net.rla[0].channels, *x.shape[2:], dtype=x.dtype, device=x.device)
    outs = []
    stages = (net.layer1, net.layer2, net.layer3, net.layer4)
    for stage, rla in zip(stages, net.rla, strict=True):
        for t, block in enumerate(stage):
            y = F.relu(block.bn1(conv_of_concat(block, rla.readers[t], x, h)))
            y = block.bn2(block.conv2(y))
            if hasattr(block, 'conv3'):
                y = block.bn3(block.conv3(F.relu(y)))
            shortcut = x if block.downsample is None else block.downsample(x)
            x = F.relu(y + shortcut)
            if t == len(rla.norms):  # the last block of a detector
                continue
            if y.shape[2:] != h.shape[2:]:
                h = F.avg_pool2d(h, 2)
            source = dict(v1=y, v2=y, v3=x, v4=x, v5=shortcut, v6=shortcut)[variant]
            new = F.conv2d(source, rla.compress.weight)
            inside = variant in ('v1', 'v3', 'v5')
            h = torch.tanh(rla.norms[t](h + new if inside else h))
            h = F.conv2d(h, rla.recurrent.weight, padding=1) + (0 if inside else new)
        outs.append(x)
    return outs


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('style', ['pytorch', 'caffe'])
@pytest.mark.parametrize('depth', [18, 50])
@pytest.mark.parametrize('variant', VARIANTS)
def test_outputs_and_gradients_are_those_of_the_equations(variant, depth, style, training,
                                                          randomise):
    net = RLAResNet(depth, base_channels=4, style=style, norm_eval=False,
                    rla=dict(channels=3, variant=variant)).double()
    randomise(net).train(training)
    image = torch.randn(2, 3, 64, 96, dtype=torch.float64, requires_grad=True)
    results = []
    for forward in (net, lambda x: plain_forward(net, x, variant)):
        outs = forward(image)
        inputs = [image, *net.parameters()]
        results.append([*outs, *torch.autograd.grad(sum(out.sin().sum() for out in outs), inputs)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_groups_and_base_width_make_a_resnext():
    net = RLAResNeXt(depth=50, groups=32, base_width=4, out_hidden=True)
    conv = net.layer2[1].conv2
    assert (conv.groups, conv.in_channels, conv.out_channels) == (32, 256, 256)
    outs = net(torch.randn(1, 3, 64, 64))
    assert [out.shape[1] for out in outs] == [256, 512, 1024, 2048, 32]


@pytest.mark.parametrize('above', range(1, 8))
def test_sides_that_are_no_multiple_of_32(above, randomise):
    sizes = (32 + above, 64 + above)
    net = randomise(RLAResNet(18, base_channels=8, out_hidden=True)).eval()
    plain = RLAResNet(18, base_channels=8, rla=None).eval()
    image = torch.randn(1, 3, *sizes)
    *outs, h = net(image)
    assert [out.shape for out in outs] == [out.shape for out in plain(image)]
    assert h.shape[2:] == outs[-1].shape[2:]
    assert all(out.isfinite().all() for out in (*outs, h))


def test_the_image_size_of_coco():
    with torch.no_grad():
        outs = RLAResNet(50).eval()(torch.randn(1, 3, 800, 1333))
    assert [tuple(out.shape[2:]) for out in outs] == [(200, 334), (100, 167), (50, 84), (25, 42)]


def test_pooling_an_odd_side_averages_the_remaining_pixels():
    stage = RLAResNet(18, base_channels=4, rla=dict(channels=1)).rla[1]
    h = torch.arange(15.0).reshape(1, 1, 3, 5)
    expected = torch.tensor([[3.0, 5.0, 6.5], [10.5, 12.5, 14.0]])
    torch.testing.assert_close(stage.pool(h)[0, 0], expected)


@pytest.mark.parametrize('collect', [torch.nn.Module.state_dict, get_state_dict])
def test_the_settings_of_the_hidden_path_are_saved_with_the_weights(collect):
    net = torch.nn.ModuleDict(dict(backbone=RLAResNet(
        18, base_channels=4, rla=dict(channels=3, variant='v3'))))
    for model in (net, copy.deepcopy(net)):
        metadata = collect(model)._metadata
        assert metadata['backbone']['rla'] == net.backbone.rla_config.update()
