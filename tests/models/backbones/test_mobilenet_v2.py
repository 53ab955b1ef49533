"""MobileNetV2: the authors' figures, the equations, mmdet's network, errors."""
import copy

import pytest
import torch
import torch.nn.functional as F
from mmdet.models import MobileNetV2
from mmdet.registry import MODELS as MMDET_MODELS
from mmengine.registry import MODELS

from mmrla.models import RLAMobileNetV2
from mmrla.weights.layouts import to_ours
from support import golden

pytestmark = pytest.mark.usefixtures('each_device')

SMALL = dict(widen_factor=0.25, rla=dict(channels=4))
DETECTOR = (1, 2, 4, 6)
CLASSIFIER = (7,)


@pytest.mark.parametrize('arguments, expected', [
    (dict(rla=None), 3_504_872),
    (dict(), 3_625_320),
    (dict(attention=dict(type='ECA')), 3_625_351),
    (dict(shared_recurrent=True), 3_625_320 - 4 * 32 * 9),
])
def test_parameters_of_the_imagenet_classifier(arguments, expected):
    net = RLAMobileNetV2(out_indices=CLASSIFIER, **arguments)
    classifier = torch.nn.Linear(1280, 1000)
    assert sum(p.numel() for m in (net, classifier) for p in m.parameters()) == expected


def relative_error(out, expected):
    expected = torch.as_tensor(expected)
    return (out - expected).abs().max() / expected.abs().max()


def test_outputs_and_logits_are_those_of_the_authors_code():
    weights, figures = to_ours(golden.weights('mbv2')), golden.figures('mbv2')
    net = RLAMobileNetV2(out_indices=range(8)).eval()
    net.load_state_dict(weights.backbone)
    with torch.no_grad():
        *outs, last = net(golden.image())
    for i, out in enumerate(outs, 1):
        assert relative_error(out, figures[f'stage{i}']) < 1e-4
    logits = F.linear(last.mean((2, 3)), weights.entries['head.fc.weight'],
                      weights.entries['head.fc.bias'])
    assert relative_error(logits, figures['logits']) < 1e-4


def test_the_golden_figures_tell_v1_from_v3_and_a_stages_convolution_from_the_networks():
    state, figures = to_ours(golden.weights('mbv2')).backbone, golden.figures('mbv2')
    for arguments in (dict(rla=dict(variant='v3')), dict(shared_recurrent=True)):
        net = RLAMobileNetV2(out_indices=(6,), **arguments).eval()
        with torch.no_grad():  # load_state_dict would refuse different values for one parameter
            for name, value in net.state_dict().items():
                value.copy_(state[name])
            assert relative_error(net(golden.image())[0], figures['stage7']) > 0.01


def batch_norm(x, norms):
    """The norms of the parts of ``x``, as one norm of the whole."""
    mean, var, weight, bias = (
        torch.cat([getattr(norm, name) for norm in norms])
        for name in ('running_mean', 'running_var', 'weight', 'bias'))
    return F.batch_norm(x, mean, var, weight, bias, training=norms[0].training)


def plain_block(block, reader, x, h):
    """The appendix of the paper: h is concatenated after the expansion."""
    y = block.expand_conv(x) if block.expand_conv is not None else x
    parts = (block, reader)
    weight = torch.cat([part.depthwise_conv.conv.weight for part in parts])
    y = F.conv2d(torch.cat([y, h], 1), weight, None, block.stride, 1, groups=len(weight))
    y = F.relu6(batch_norm(y, [part.depthwise_conv.bn for part in parts]))
    y = F.conv2d(y, torch.cat([part.linear_conv.conv.weight for part in parts], 1))
    y = block.linear_conv.bn(y)
    return y if block.attention is None else block.attention(y)


def plain_update(rla, t, h, y, x, variant):
    """Section 3.3 of the paper with a depthwise recurrent convolution."""
    if y.shape[2:] != h.shape[2:]:
        h = F.avg_pool2d(h, 2)
    new = F.conv2d(dict(v1=y, v2=y, v3=x, v4=x)[variant], rla.compress.weight)
    inside = variant in ('v1', 'v3')
    h = torch.tanh(rla.norms[t](h + new if inside else h))
    h = F.conv2d(h, rla.recurrent.weight, padding=1, groups=h.shape[1])
    return h if inside else h + new


def plain_forward(net, image, variant):
    """The whole network written down with concatenations."""
    x = net.conv1(image)
    h = torch.zeros(x.shape[0], net.rla[0].channels, *x.shape[2:], dtype=x.dtype)
    outs = []
    for i, rla in enumerate(net.rla):
        for t, block in enumerate(getattr(net, f'layer{i + 1}')):
            y = plain_block(block, rla.readers[t], x, h)
            x = x + y if x.shape == y.shape else y
            if t < len(rla.norms):
                h = plain_update(rla, t, h, y, x, variant)
        outs.append(x)
    if 7 in net.out_indices:
        weight = torch.cat([net.conv2.conv.weight, net.conv2_reader.conv.weight], 1)
        x = F.conv2d(torch.cat([x, F.relu6(net.conv2_reader.bn(h))], 1), weight)
        outs.append(F.relu6(net.conv2.bn(x)))
    return [outs[i] for i in net.out_indices]


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('out_indices', [(1, 2, 4, 7), DETECTOR])
@pytest.mark.parametrize('arguments', [
    dict(rla=dict(channels=3, variant='v1')),
    dict(rla=dict(channels=3, variant='v2')),
    dict(rla=dict(channels=3, variant='v3'), attention=dict(type='ECA')),
    dict(rla=dict(channels=3, variant='v4'), attention=dict(type='SE', ratio=4)),
    dict(rla=dict(channels=3, variant='v1'), shared_recurrent=True),
])
def test_outputs_and_gradients_are_those_of_the_equations(arguments, out_indices, training,
                                                          randomise):
    net = RLAMobileNetV2(0.25, out_indices, **arguments).double()
    randomise(net).train(training)
    variant = arguments['rla']['variant']
    image = torch.randn(2, 3, 64, 96, dtype=torch.float64, requires_grad=True)
    results = []
    for forward in (net, lambda x: plain_forward(net, x, variant)):
        outs = forward(image)
        inputs = [image, *net.parameters()]
        results.append([*outs, *torch.autograd.grad(sum(out.sin().sum() for out in outs), inputs)])
    # The norms over few pixels in the last layers amplify rounding to about 1e-9.
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize('arguments', [
    dict(),
    dict(widen_factor=0.35, out_indices=(0, 3, 6)),
    dict(widen_factor=0.5, out_indices=(7,), frozen_stages=3),
    dict(widen_factor=1.1, out_indices=(2, 4, 7), norm_eval=True),
    dict(widen_factor=0.1, out_indices=(7, 1), with_cp=True, frozen_stages=0),
    dict(widen_factor=0.5, norm_cfg=dict(type='GN', num_groups=4), act_cfg=dict(type='ReLU')),
    dict(widen_factor=0.5, conv_cfg=dict(type='ConvWS')),
])
def test_without_rla_it_is_mmdets_network(arguments):
    networks = []
    for build in (lambda **kw: RLAMobileNetV2(rla=None, **kw), MobileNetV2):
        torch.manual_seed(0)
        net = build(**arguments)
        net.init_weights()
        networks.append(net)
    ours, theirs = networks
    expected = theirs.state_dict()
    assert list(ours.state_dict()) == list(expected)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, expected[name]), f'{name} starts differently'
    image = torch.randn(2, 3, 33, 65)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        assert ([(name, p.requires_grad) for name, p in ours.named_parameters()]
                == [(name, p.requires_grad) for name, p in theirs.named_parameters()])
        for out, expected in zip(ours(image), theirs(image), strict=True):
            assert torch.equal(out, expected)


@pytest.mark.parametrize('registry', [MODELS, MMDET_MODELS])
def test_every_registry_finds_it_by_its_plain_name(registry):
    assert isinstance(registry.build(dict(type='RLAMobileNetV2', **SMALL)), RLAMobileNetV2)


def test_a_plain_networks_weights_fit_and_readers_of_zero_change_nothing(randomise):
    plain = randomise(MobileNetV2(0.25))
    plain.eval()  # which returns None in mmdet
    net = randomise(RLAMobileNetV2(**SMALL)).eval()
    net.load_state_dict(plain.state_dict())
    readers = [reader.linear_conv.conv for stage in net.rla for reader in stage.readers]
    for conv in (*readers, net.conv2_reader.conv):
        assert conv.weight.abs().max() == 0
    image = torch.randn(1, 3, 64, 64)
    for out, expected in zip(net(image), plain(image), strict=True):
        assert torch.equal(out, expected)


def total(outs):
    return sum(out.double().square().mean() for out in outs)


@pytest.mark.parametrize('arguments', [
    dict(), dict(out_indices=DETECTOR), dict(out_indices=CLASSIFIER), dict(out_indices=(2, 4)),
    dict(out_indices=(0,)), dict(shared_recurrent=True), dict(attention=dict(type='ECA')),
    dict(attention=dict(type='SE', ratio=4)), dict(rla=dict(channels=4, variant='v4')),
    dict(frozen_stages=4), dict(out_indices=DETECTOR, with_cp=True)])
def test_every_parameter_that_trains_gets_a_gradient(arguments, randomise):
    net = randomise(RLAMobileNetV2(**{**SMALL, **arguments})).train()
    total(net(torch.randn(2, 3, 64, 64))).backward()
    assert [name for name, p in net.named_parameters()
            if p.requires_grad and p.grad is None] == []
    # The gradient is zero for weights that multiply h^0 = 0, and for values that the
    # norm after the linear convolution removes. All others on the path are not zero.
    zero = {name for name, p in net.rla.named_parameters()
            if p.requires_grad and p.grad.abs().max() == 0}
    assert zero <= {'0.readers.0.depthwise_conv.conv.weight',
                    '0.readers.0.depthwise_conv.bn.weight',
                    '0.readers.0.depthwise_conv.bn.bias',
                    '0.norms.0.weight'}  # in v2 and v4


@pytest.mark.parametrize('frozen', [-1, 0, 1, 4, 7])
@pytest.mark.parametrize('out_indices', [CLASSIFIER, DETECTOR, (2,)])
def test_a_frozen_layer_freezes_its_part_of_the_hidden_path(out_indices, frozen, randomise):
    net = randomise(RLAMobileNetV2(out_indices=out_indices, frozen_stages=frozen, **SMALL))
    prefixes = [f'layer{i + 1}.' for i in range(frozen)] + [f'rla.{i}.' for i in range(frozen)]
    prefixes += ['conv1.'] * (frozen >= 0)
    # layer4 shares its recurrent convolution with layer5.
    prefixes += ['rla.4.recurrent.'] * (frozen == 4)
    for name, parameter in net.named_parameters(remove_duplicate=False):
        assert parameter.requires_grad != name.startswith(tuple(prefixes)), name
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(4, 3, 64, 64))
    changed = {name for name, value in net.state_dict().items()
               if not torch.equal(value, before[name])}
    # As in mmdet, the statistics of conv1 are still updated.
    still = tuple(prefix for prefix in prefixes if prefix != 'conv1.')
    assert changed == {name for name in before if not name.startswith(still) and (
        'running' in name or 'tracked' in name)}


def test_norm_eval_does_not_change_the_statistics_of_both_paths(randomise):
    net = randomise(RLAMobileNetV2(norm_eval=True, **SMALL)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize('rla', [None, dict(channels=4)])
def test_recomputed_activations_give_the_same_gradients(rla, randomise):
    image, gradients = torch.randn(2, 3, 65, 64), []
    for with_cp in (False, True):
        torch.manual_seed(0)
        net = randomise(RLAMobileNetV2(0.25, rla=rla, with_cp=with_cp)).train()
        total(net(image)).backward()
        gradients.append([p.grad for p in net.parameters()])
    for recomputed, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, expected)


def recurrent_objects(net):
    """For each layer, which of the distinct recurrent convolutions it has."""
    seen = []
    return [seen.index(conv) if conv in seen else seen.append(conv) or len(seen) - 1
            for conv in (stage.recurrent for stage in net.rla)]


@pytest.mark.parametrize('shared, expected', [
    (False, [0, 1, 2, 3, 3, 4, 4]), (True, [0] * 7)])
def test_the_recurrent_convolution_is_a_stages_or_the_networks(shared, expected, randomise):
    net = randomise(RLAMobileNetV2(shared_recurrent=shared, **SMALL)).eval()
    other = RLAMobileNetV2(shared_recurrent=shared, **SMALL).eval()
    other.init_weights()
    other.load_state_dict(net.state_dict())
    image = torch.randn(1, 3, 64, 64)
    for network in (net, other, copy.deepcopy(net)):
        assert recurrent_objects(network) == expected
        for out, same in zip(network(image), net(image), strict=True):
            assert torch.equal(out, same)
    names = [name for name, _ in net.named_parameters() if name.endswith('recurrent.weight')]
    assert len(names) == len(set(expected))


@pytest.mark.parametrize('channels, kernel_size', [(64, 1), (88, 1), (96, 3), (320, 3)])
def test_eca_has_the_authors_kernel_sizes(channels, kernel_size):
    cfg = RLAMobileNetV2._attention_for(dict(type='ECA'), channels)
    assert cfg == dict(type='ECA', kernel_size=kernel_size)
    given = dict(type='ECA', kernel_size=5)
    assert RLAMobileNetV2._attention_for(given, channels) == given


@pytest.mark.parametrize('above', range(1, 8))
def test_sides_that_are_no_multiple_of_32(above, randomise):
    image = torch.randn(1, 3, 32 + above, 64 + above)
    outs = randomise(RLAMobileNetV2(**SMALL)).eval()(image)
    expected = RLAMobileNetV2(0.25, rla=None).eval()(image)
    assert [out.shape for out in outs] == [out.shape for out in expected]
    assert all(out.isfinite().all() for out in outs)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_the_outputs_have_the_networks_dtype(dtype):
    outs = RLAMobileNetV2(**SMALL).to(dtype).eval()(torch.randn(1, 3, 64, 64, dtype=dtype))
    assert {out.dtype for out in outs} == {dtype}


def test_autocast_trains_close_to_float32(randomise, each_device):
    net, image = randomise(RLAMobileNetV2(norm_eval=True, **SMALL)), torch.randn(2, 3, 64, 64)
    exact = net.train()(image)
    with torch.autocast(each_device.type, torch.bfloat16):
        outs = net(image)
        total(outs).backward()
    for out, expected in zip(outs, exact, strict=True):
        assert (out.float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize('arguments, parts', [
    (dict(rla=dict(variant='v5')), ("'v5'", 'shortcut', "'v1', 'v2', 'v3', 'v4'")),
    (dict(rla=dict(variant='v6')), ("'v6'", 'shortcut', "'v1', 'v2', 'v3', 'v4'")),
    (dict(rla=dict(variant='v7')), ("'v7'", "'v1'")),
    (dict(rla=dict(channels=0)), ('rla.channels=0', '1 or more')),
    (dict(rla='v1'), ("rla='v1'", 'channels')),
    (dict(rla=None, shared_recurrent=True), ('shared_recurrent=True', 'rla=dict')),
    (dict(shared_recurrent='yes'), ("shared_recurrent='yes'", 'False, True')),
    (dict(attention=dict(type='CBAN')), ("'CBAN'", "'SE'", "'ECA'")),
    (dict(attention=dict(type='ECA', kernel_size=4)), ('attention.kernel_size=4', 'odd')),
    (dict(widen_factor=0), ('widen_factor=0', 'above 0')),
    (dict(widen_factor='1.0'), ("widen_factor='1.0'", 'above 0')),
    (dict(out_indices=(1, 8)), ('8', '0, 1, 2, 3, 4, 5, 6, 7')),
    (dict(out_indices=()), ('out_indices=()',)),
    (dict(frozen_stages=8), ('frozen_stages=8', '-1, 0, 1, 2, 3, 4, 5, 6, 7')),
    (dict(pretrained='a.pth', init_cfg=dict(type='Pretrained', checkpoint='b.pth')),
     ('a.pth', 'b.pth')),
])
def test_a_wrong_value_is_named_with_the_choices(arguments, parts):
    with pytest.raises(ValueError) as error:
        RLAMobileNetV2(**arguments)
    for part in parts:
        assert part in str(error.value)
