"""The CIFAR models: the paper's parameters, and a plain computation."""
import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS

from mmrla.models import VARIANTS, RLACifarResNet, RLAXception

pytestmark = pytest.mark.usefixtures('each_device')

SMALL = {
    'basic': lambda **kw: RLACifarResNet(**{'depth': 14, 'base_channels': 4, **kw}),
    'bottleneck': lambda **kw: RLACifarResNet(
        **{'depth': 20, 'bottleneck': True, 'base_channels': 4, **kw}),
    'xception': lambda **kw: RLAXception(**{'base_channels': 2, 'num_middle': 2, **kw}),
}
HIDDEN = dict(rla=dict(channels=3), out_hidden=True)
# Xception ends in a block without a shortcut, which v5 and v6 would compress.
KINDS_AND_VARIANTS = [(kind, variant) for kind in SMALL for variant in VARIANTS
                      if kind != 'xception' or variant not in ('v5', 'v6')]


def count(net, classes, k=0):
    """Trainable parameters of the classifier: backbone, norm of h, linear layer."""
    backbone = sum(p.numel() for p in net.parameters() if p.requires_grad)
    return backbone + 2 * k + (net.feat_dim + k + 1) * classes


# Depth, k, further arguments; parameters, in millions, and as the paper prints them.
RESNETS = [
    (110, None, {}, 1_730_554, 1.731, 1.73),
    (110, 4, {}, 1_804_922, 1.805, 1.80),
    (164, None, {}, 1_703_290, 1.703, 1.72),
    (164, 8, {}, 1_726_554, 1.727, 1.73),
    (164, 12, {}, 1_739_482, 1.739, 1.74),
    (164, 16, {}, 1_753_274, 1.753, 1.75),
    (164, 24, {}, 1_783_450, 1.783, 1.78),
    (164, None, dict(extra_channels=3), 1_925_692, 1.926, 1.93),
]


@pytest.mark.parametrize('depth, k, arguments, exact, millions, paper', RESNETS)
def test_parameters_of_the_resnets(depth, k, arguments, exact, millions, paper):
    rla = dict(channels=k) if k else None
    net = RLACifarResNet(depth, rla=rla, out_hidden=bool(k), **arguments)
    assert count(net, 10, k or 0) == exact
    assert round(exact / 1e6, 3) == millions
    assert abs(exact / 1e6 - paper) < 0.02


@pytest.mark.parametrize('ablation, exact, paper', [
    (dict(shared=False), 1_896_970, 1.90), (dict(exchange=False), 1_713_994, 1.72)])
def test_parameters_of_the_ablations_of_resnet_164(ablation, exact, paper):
    net = RLACifarResNet(164, rla=dict(channels=12, **ablation), out_hidden=True)
    assert count(net, 10, 12) == exact
    assert abs(exact / 1e6 - paper) < 0.02


@pytest.mark.parametrize('classes, k, exact, paper', [
    (10, None, 2_701_882, 2.70), (100, None, 2_748_052, 2.75),
    (10, 12, 2_767_534, 2.77), (100, 12, 2_814_784, 2.81)])
def test_parameters_of_xception(classes, k, exact, paper):
    net = RLAXception(rla=dict(channels=k) if k else None, out_hidden=bool(k))
    assert count(net, classes, k or 0) == exact
    assert round(exact / 1e6, 2) == paper


def norm_of_concat(norms, x, training):
    """One batch norm with the channels of several."""
    mean, var, weight, bias = (
        torch.cat([getattr(norm, name) for norm in norms])
        for name in ('running_mean', 'running_var', 'weight', 'bias'))
    return F.batch_norm(x, mean, var, weight, bias, training)


def conv(x, convolution, weight=None):
    weight = convolution.weight if weight is None else weight
    return F.conv2d(x, weight, None, convolution.stride, weight.shape[-1] // 2)


def update(rla, t, h, y, x, shortcut, variant):
    """h of the next block (section 3.3), or h where the block makes none."""
    if t == len(rla.norms):
        return h
    if y.shape[2:] != h.shape[2:]:
        h = F.avg_pool2d(h, 2)
    source = dict(v1=y, v2=y, v3=x, v4=x, v5=shortcut, v6=shortcut)[variant]
    new = F.conv2d(source, rla.compress.weight)
    inside = variant in ('v1', 'v3', 'v5')
    h = torch.tanh(rla.norms[t](h + new if inside else h))
    return F.conv2d(h, rla.recurrent.weight, padding=1) + (0 if inside else new)


def plain_resnet(net, image, variant):
    """The pre-activated ResNet with Concat(x, h), block by block."""
    x = net.stem(image)
    h = torch.zeros(x.shape[0], 3, *x.shape[2:], dtype=x.dtype)
    outs = []
    for stage, rla in zip(net.stages, net.rla, strict=True):
        for t, block in enumerate(stage):
            h_norm, _, h_conv = rla.readers[t]
            y = norm_of_concat([block.norms[0], h_norm], torch.cat([x, h], 1), net.training)
            weight = torch.cat([block.convs[0].weight, h_conv.weight], 1)
            y = conv(y.clamp(min=0), block.convs[0], weight)
            for norm, convolution in zip(block.norms[1:], block.convs[1:], strict=True):
                y = conv(norm(y).clamp(min=0), convolution)
            shortcut = x if x.shape == y.shape else conv(x, block.shortcut)
            x = y + shortcut
            h = update(rla, t, h, y, x, shortcut, variant)
        outs.append(x)
    outs[-1] = norm_of_concat([net.final[0]], x, net.training).clamp(min=0)
    return [*outs, h] if net.out_hidden else outs


def separable(x, depthwise, pointwise):
    return F.conv2d(F.conv2d(x, depthwise, padding=1, groups=x.shape[1]), pointwise)


def mean_of_window(y):
    """The mean of the pixels inside 3x3 windows of stride 2."""
    ones = torch.ones(y.shape[1], 1, 3, 3, dtype=y.dtype)
    sums, sizes = (F.conv2d(z, ones, stride=2, padding=1, groups=y.shape[1])
                   for z in (y, torch.ones_like(y)))
    return sums / sizes


def plain_xception(net, image, variant):
    """Xception with Concat(x, h), as in the rows of the paper's table."""
    x = net.stem(image)
    h = torch.zeros(x.shape[0], 3, *x.shape[2:], dtype=x.dtype)
    last = len(net.groups) - 1
    for i, (blocks, rla) in enumerate(zip(net.groups, net.rla, strict=True)):
        for t, block in enumerate(blocks):
            both = torch.cat([x, h], 1)
            if i not in (0, last):
                both = both.clamp(min=0)
            parts = block.convs[0], rla.readers[t][-1]
            y = separable(both, torch.cat([part.depthwise.weight for part in parts]),
                          torch.cat([part.pointwise.weight for part in parts], 1))
            y = block.norms[0](y)
            for norm, layer in zip(block.norms[1:], block.convs[1:], strict=True):
                y = norm(separable(y.clamp(min=0), layer.depthwise.weight,
                                   layer.pointwise.weight))
            if i in (2, 4):
                y = mean_of_window(y)
            shortcut = None if i == last else block.shortcut(x)
            x = y.clamp(min=0) if i == last else y + shortcut
            h = update(rla, t, h, y, x, shortcut, variant)
    return [x, h] if net.out_hidden else [x]


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('out_hidden', [False, True])
@pytest.mark.parametrize('kind, variant', KINDS_AND_VARIANTS)
def test_outputs_and_gradients_are_those_of_the_equations(kind, variant, out_hidden, training,
                                                          randomise):
    several = {} if kind == 'xception' else dict(out_indices=(0, 1, 2))
    net = SMALL[kind](rla=dict(channels=3, variant=variant), out_hidden=out_hidden, **several)
    randomise(net.double()).train(training)
    plain = plain_xception if kind == 'xception' else plain_resnet
    image = torch.randn(2, 3, 16, 24, dtype=torch.float64, requires_grad=True)
    results = []
    for forward in (net, lambda x: plain(net, x, variant)):
        outs = forward(image)
        inputs = [image, *net.parameters()]
        results.append([*outs, *torch.autograd.grad(sum(out.sin().sum() for out in outs), inputs)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('size', [(32, 32), (31, 33), (29, 34), (17, 1), (225, 97)])
@pytest.mark.parametrize('kind', SMALL)
def test_any_image_size(kind, size, randomise):
    net, plain = randomise(SMALL[kind](**HIDDEN)).eval(), SMALL[kind](rla=None).eval()
    image = torch.randn(1, 3, *size)
    x, h = net(image)
    quarter = tuple(-(-side // 4) for side in size)
    assert x.shape == plain(image)[0].shape == (1, net.feat_dim, *quarter)
    assert h.shape == (1, 3, *quarter)
    assert x.isfinite().all() and h.isfinite().all()


@pytest.mark.parametrize('out_hidden', [False, True])
@pytest.mark.parametrize('kind', SMALL)
def test_every_parameter_gets_a_gradient(kind, out_hidden, randomise):
    net = randomise(SMALL[kind](out_hidden=out_hidden)).train()
    sum(out.square().mean() for out in net(torch.randn(2, 3, 32, 32))).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []
    # h^0 = 0, so the gradient of the first reader may be zero.
    zero = [name for name, p in net.named_parameters()
            if p.grad.abs().max() == 0 and not name.startswith('rla.0.readers.0.')]
    assert zero == []


@pytest.mark.parametrize('out_indices, shapes', [
    ((0,), [(4, 32)]), ((1,), [(8, 16)]), ((0, 2), [(4, 32), (16, 8)])])
def test_stages_after_the_last_output_are_not_built(out_indices, shapes, randomise):
    net = randomise(SMALL['basic'](out_indices=out_indices)).train()
    outs = net(torch.randn(2, 3, 32, 32))
    assert [tuple(out.shape[1:3]) for out in outs] == shapes
    sum(out.square().mean() for out in outs).backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
@pytest.mark.parametrize('kind', SMALL)
def test_the_outputs_have_the_networks_dtype(kind, dtype):
    net = SMALL[kind](**HIDDEN).to(dtype).eval()
    outs = net(torch.randn(1, 3, 32, 32, dtype=dtype))
    assert [out.dtype for out in outs] == [dtype] * 2


def assert_kaiming(convolution, fan):
    expected = (2 / fan)**0.5
    assert abs(convolution.weight.std().item() / expected - 1) < 0.2


def test_initial_values_are_those_of_he_et_al():
    resnet, xception = RLACifarResNet(20), RLAXception(num_middle=1, out_hidden=True)
    for net in (resnet, xception):
        net.init_weights()
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert (module.weight == 1).all() and (module.bias == 0).all()
    assert_kaiming(resnet.stages[2][1].convs[0], 9 * 64)
    assert_kaiming(resnet.rla[2].readers[1][2], 9 * 64)
    assert_kaiming(resnet.rla[2].compress, 12)
    # A channel of a depthwise convolution has 9 inputs, for any number of channels.
    for layer in (xception.groups[5][0].convs[0], xception.rla[5].readers[0][0]):
        assert_kaiming(layer.depthwise, 9)
        assert_kaiming(layer.pointwise, 512)


@pytest.mark.parametrize('name, arguments', [
    ('RLACifarResNet', dict(depth=20)), ('RLAXception', dict(num_middle=1))])
def test_the_registry_builds_it_and_its_state_loads(name, arguments):
    nets = [MODELS.build(dict(type=name, out_hidden=True, **arguments)).eval() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    image = torch.randn(1, 3, 32, 32)
    for out, expected in zip(nets[1](image), nets[0](image), strict=True):
        assert torch.equal(out, expected)


@pytest.mark.parametrize('depth, bottleneck, per_stage, convs', [
    (20, None, 3, 2), (110, None, 18, 2), (164, None, 18, 3), (110, True, 12, 3),
    (164, False, 27, 2), (29, True, 3, 3), (8, None, 1, 2), (1001, None, 111, 3)])
def test_depth_counts_the_convolutions(depth, bottleneck, per_stage, convs):
    with torch.device('meta'):
        net = RLACifarResNet(depth, bottleneck, rla=None)
    assert [len(stage) for stage in net.stages] == [per_stage] * 3
    assert len(net.stages[0][0].convs) == convs


@pytest.mark.parametrize('build, arguments, parts', [
    (RLACifarResNet, dict(depth=111), ('depth=111', '6n + 2', '9n + 2')),
    (RLACifarResNet, dict(depth=32, bottleneck=True), ('depth=32', 'bottleneck=True', '9n + 2')),
    (RLACifarResNet, dict(depth=2), ('depth=2', '6n + 2')),
    (RLACifarResNet, dict(depth='110'), ("depth='110'",)),
    (RLACifarResNet, dict(bottleneck='yes'), ("bottleneck='yes'", 'None, True, False')),
    (RLACifarResNet, dict(base_channels=0), ('base_channels=0', '1 or more')),
    (RLACifarResNet, dict(in_channels=None), ('in_channels=None',)),
    (RLACifarResNet, dict(extra_channels=-3), ('extra_channels=-3',)),
    (RLACifarResNet, dict(extra_channels=1.5), ('extra_channels=1.5',)),
    (RLACifarResNet, dict(out_indices=()), ('out_indices=()',)),
    (RLACifarResNet, dict(out_indices=(3,)), ('3', '0, 1, 2')),
    (RLACifarResNet, dict(rla=dict(variant='v7')), ("'v7'", "'v1'", "'v6'")),
    (RLACifarResNet, dict(rla=None, out_hidden=True), ('out_hidden=True', 'rla=dict')),
    (RLAXception, dict(num_middle=0), ('num_middle=0', '1 or more')),
    (RLAXception, dict(base_channels=16.0), ('base_channels=16.0',)),
    (RLAXception, dict(in_channels=0), ('in_channels=0',)),
    (RLAXception, dict(rla=dict(variant='v5')), ("'v5'", "'v1', 'v2', 'v3', 'v4'")),
    (RLAXception, dict(rla=dict(channels=0)), ('rla.channels=0',)),
    (RLAXception, dict(rla=None, out_hidden=True), ('out_hidden=True', 'rla=dict')),
])
def test_a_wrong_value_is_named_with_the_choices(build, arguments, parts):
    if build is RLACifarResNet:
        arguments = {'depth': 20, **arguments}
    with pytest.raises(ValueError) as error:
        build(**arguments)
    for part in parts:
        assert part in str(error.value)
