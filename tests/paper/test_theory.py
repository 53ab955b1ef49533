"""Section 3 and appendix A of the paper, equation by equation, on small float64 networks.

Each test names its equation. ``x^t`` is the output of layer or block t, ``x^0`` the
input of a stage; equation 12 is the sum of powers at the end of appendix A.3.
"""
import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from mmrla.models import (
    CifarDenseNet,
    RLACifarResNet,
    RLAMobileNetV2,
    RLAResNet,
    RLAStage,
    RLAXception,
)
from mmrla.models.backbones.blocks import Stage
from mmrla.models.backbones.densenet import DenseBlock
from mmrla.models.rla import BlockFeatures, RLAConfig

F64 = torch.float64
EXACT = dict(rtol=1e-9, atol=1e-9)


def images(*size):
    return torch.randn(*size, dtype=F64)


def stages_of(net):
    """Each stage's part of the hidden path with its blocks."""
    return list(net.hidden_stages())


def distance(a, b):
    """The largest difference relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def assert_same(a, b):
    assert distance(a, b) < 1e-12


def assert_differ(a, b):
    # Float64 rounds at 1e-16: small random networks differ by less than trained ones do.
    assert distance(a, b) > 1e-8


class WithoutTanh(TorchFunctionMode):
    """tanh returns its input."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tanh, torch.Tensor.tanh_, torch.tanh):
            return args[0]
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def linear_hidden_path(net):
    """Ignore the nonlinearities of the hidden path, as appendix A.3 does."""
    for stage in (module for module in net.modules() if isinstance(module, RLAStage)):
        for t in range(len(stage.norms)):
            stage.norms[t] = nn.Identity()
    with WithoutTanh(), torch.no_grad():
        yield


# Equation 1: the layer aggregation mechanism.

def output_with_fixed_input(net, block, image, fixed):
    """The output of a block for an image, with ``fixed`` as the block's input x^{t-1}."""
    outs = []
    handles = [
        block.register_forward_pre_hook(lambda _, args: (fixed, *args[1:])),
        block.register_forward_hook(lambda _, args, out: outs.append(out.clone()))]
    with torch.no_grad():
        net(image)
    for handle in handles:
        handle.remove()
    return outs[0]


def input_of(net, block, image):
    seen = []
    handle = block.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    with torch.no_grad():
        net(image)
    handle.remove()
    return seen[0]


NETWORKS = {
    'resnet': lambda **kw: RLAResNet(18, base_channels=4, **kw),
    'bottleneck': lambda **kw: RLAResNet(50, base_channels=4, **kw),
    'mobilenet': lambda **kw: RLAMobileNetV2(widen_factor=0.1, **kw),
    'cifar': lambda **kw: RLACifarResNet(20, base_channels=4, **kw),
    'cifar bottleneck': lambda **kw: RLACifarResNet(29, bottleneck=True, base_channels=2, **kw),
    'xception': lambda **kw: RLAXception(base_channels=2, num_middle=2, **kw),
}
READS_H_AT_ITS_END = dict(mobilenet=dict(), default=dict(out_hidden=True))


def build(name, randomise, **rla):
    """A network whose last h is read."""
    end = READS_H_AT_ITS_END.get(name, READS_H_AT_ITS_END['default'])
    return randomise(NETWORKS[name](rla=dict(channels=3, **rla), **end)).to(F64).eval()


@pytest.mark.parametrize('name', NETWORKS)
def test_eq_1_x_t_depends_on_earlier_layers_beyond_x_t_minus_1(name, randomise):
    """x^t = f^t(A^{t-1}, x^{t-1}): with x^{t-1} held fixed, x^t still sees the layers before."""
    net = build(name, randomise)
    stage, blocks = max(stages_of(net), key=lambda pair: len(pair[1]))
    block = blocks[-1]
    one, other = images(2, 1, 3, 64, 64)
    fixed = input_of(net, block, one)
    assert_differ(output_with_fixed_input(net, block, other, fixed),
                  output_with_fixed_input(net, block, one, fixed))


@pytest.mark.parametrize('name', ['resnet', 'mobilenet', 'cifar', 'xception'])
def test_eq_1_without_the_hidden_path_only_x_t_minus_1_is_seen(name, randomise):
    """A plain network, and RLA without exchange: x^t = f^t(x^{t-1})."""
    one, other = images(2, 1, 3, 64, 64)
    plain = randomise(NETWORKS[name](rla=None)).to(F64).eval()
    without_exchange = build(name, randomise, exchange=False)
    for net in (plain, without_exchange):
        block = [module for module in net.modules() if hasattr(module, 'joint')][-1]
        fixed = input_of(net, block, one)
        assert_same(output_with_fixed_input(net, block, other, fixed),
                    output_with_fixed_input(net, block, one, fixed))


def test_eq_1_densenet_sees_all_earlier_layers(randomise):
    """A dense layer with x^{t-1} held fixed still changes with x^0, ..., x^{t-2}."""
    k = 3
    block = randomise(DenseBlock(9, 4, k, None, dict(type='BN'))).to(F64).eval()

    def last(x0, fixed=None):
        def replace(_, args):
            return (torch.cat([args[0][:, :-k], fixed], 1),)
        handle = block.conv1[-1].register_forward_pre_hook(
            replace if fixed is not None else lambda _, args: None)
        with torch.no_grad():
            out = block(x0)
        handle.remove()
        return out[:, -k:], out[:, -2 * k:-k]

    one, other = images(2, 1, 9, 8, 8)
    _, fixed = last(one)
    assert_differ(last(other, fixed)[0], last(one, fixed)[0])


# Appendix A.1, examples 1 and 2.

def test_a1_a_sequential_cnn_has_no_layer_aggregation():
    """x^t = Conv_t(... Conv_1(x^0)): every earlier layer acts through x^{t-1} alone."""
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).to(F64) for _ in range(5)]

    def run(x, fixed=None):
        for layer in layers[:-1]:
            x = layer(x)
        return layers[-1](x if fixed is None else fixed), x

    one, other = images(2, 1, 4, 6, 6)
    _, fixed = run(one)
    assert torch.equal(run(other, fixed)[0], run(one, fixed)[0])
    assert_differ(run(other)[0], run(one)[0])


def aggregation_node(conv, norm, inputs):
    """The node N of hierarchical layer aggregation (Yu et al., equation 3)."""
    return F.relu(norm(conv(torch.cat(inputs, 1))))


def test_a1_hierarchical_aggregation_has_the_additive_form(randomise):
    """N(x^1, ..., x^n) = relu(BN(sum_i W_i x^i + b)); without relu and BN, equation 2."""
    channels, count = 3, 4
    conv = randomise(nn.Conv2d(channels * count, 5, 1)).to(F64)
    norm = randomise(nn.BatchNorm2d(5)).to(F64).eval()
    inputs = list(images(count, 2, channels, 6, 6))
    parts = conv.weight.split(channels, 1)
    total = sum(F.conv2d(x, weight) for x, weight in zip(inputs, parts, strict=True))
    total = total + conv.bias.view(-1, 1, 1)
    torch.testing.assert_close(conv(torch.cat(inputs, 1)), total, **EXACT)
    torch.testing.assert_close(aggregation_node(conv, norm, inputs), F.relu(norm(total)), **EXACT)
    # Equation 1: with the newest input held fixed, an older one is still seen.
    changed = [inputs[0] + 1, *inputs[1:]]
    assert_differ(aggregation_node(conv, norm, changed), aggregation_node(conv, norm, inputs))


# Equations 2 to 4: DenseNet and the unrolled ResNet.

@pytest.mark.parametrize('size', [1, 3])
def test_eq_4_a_convolution_of_a_concatenation_is_a_sum(size, randomise):
    """Conv(Concat(x^0, ..., x^{t-1})) = sum_l Conv_l(x^l), for 1x1 and any other size (A.1)."""
    k, count = 4, 5
    conv = randomise(nn.Conv2d(k * count, 7, size, padding=size // 2, bias=False)).to(F64)
    features = list(images(count, 2, k, 6, 6))
    parts = conv.weight.split(k, 1)
    terms = [F.conv2d(x, w, padding=size // 2) for x, w in zip(features, parts, strict=True)]
    torch.testing.assert_close(conv(torch.cat(features, 1)), sum(terms), **EXACT)
    assert torch.equal(torch.cat(parts, 1), conv.weight), 'the kernels are no partition'


def test_eq_2_and_3_a_dense_layer_adds_to_what_is_aggregated(randomise):
    """A^t = sum_l Conv1_l^{t+1}(x^l) and x^t = Conv3^t[A^{t-1} + Conv1_{t-1}^t(x^{t-1})].

    On the code's own dense block, whose norm and ReLU act on every channel by itself.
    """
    k, c0, depth = 3, 9, 5
    block = randomise(DenseBlock(c0, depth, k, None, dict(type='BN'))).to(F64).eval()
    x0 = images(2, c0, 6, 6)
    with torch.no_grad():
        xs = list(block(x0).split([c0] + [k] * depth, 1))

        def part(t, number):
            """Conv1_l^t(x^l), l = number, with the norm and ReLU of its channels."""
            layer = block.conv1[t - 1]
            start = 0 if number == 0 else c0 + (number - 1) * k
            stop = c0 + number * k
            norm = layer.norm
            x = F.batch_norm(xs[number], norm.running_mean[start:stop],
                             norm.running_var[start:stop], norm.weight[start:stop],
                             norm.bias[start:stop], eps=norm.eps)
            return F.conv2d(F.relu(x), layer.conv.weight[:, start:stop])

        def aggregated(t):
            """A^t, empty for t = 0."""
            return sum(part(t + 1, number) for number in range(t))

        for t in range(1, depth + 1):
            expected = block.conv3[t - 1](aggregated(t - 1) + part(t, t - 1))
            torch.testing.assert_close(xs[t], expected, **EXACT)


@pytest.mark.parametrize('depth, bottleneck', [(20, False), (29, True)])
def test_eq_2_a_pre_activated_resnet_is_the_sum_of_its_residuals(depth, bottleneck, randomise):
    """x^t = sum_l g_l(x^l) + x^0, and x^t = A^{t-1} + g_{t-1}(x^{t-1}), in every stage."""
    net = randomise(RLACifarResNet(depth, bottleneck=bottleneck, base_channels=4,
                                   rla=None)).to(F64).eval()
    features = {}
    for stage in net.stages:
        for block in stage:
            block.register_forward_hook(lambda module, args, out: features.__setitem__(
                module, (args[0].clone(), out.clone())))
    with torch.no_grad():
        net(images(2, 3, 16, 16))
    for stage in net.stages:
        blocks = list(stage)[stage[0].shortcut is not None:]  # x^0: after the projection
        x0 = features[blocks[0]][0]
        aggregate = x0  # A^0, the additive constant of equation 2
        for block in blocks:
            x_before, x_after = features[block]
            own = block.features(x_before, None).residual  # g_{t-1} of x^{t-1} alone
            torch.testing.assert_close(x_after, aggregate + own, **EXACT)
            aggregate = aggregate + own


# Equation 5: attention across layers.

def dense_layer_kernel(k, t, size, randomise):
    """The first convolution of dense layer t + 1, where every x^l has k channels."""
    block = randomise(DenseBlock(k, t, k, None, dict(type='BN'))).to(F64)
    conv = block.conv1[t - 1].conv
    assert (conv.in_channels, conv.out_channels) == (t * k, 4 * k), 'm = 4k heads (A.1)'
    if size == 1:
        return conv
    return randomise(nn.Conv2d(t * k, 4 * k, size, padding=size // 2, bias=False)).to(F64)


def test_eq_5_a_channel_of_a_1x1_convolution_is_a_head(randomise):
    """head_i = sum_{l,c} W_{j(l,c),i} x_c^l with j(l, c) = l k + c."""
    k, t = 3, 4
    conv = dense_layer_kernel(k, t, 1, randomise)
    xs = images(t, 2, k, 5, 5)
    attention = conv(torch.cat(list(xs), 1))
    for i in range(4 * k):
        head = sum(conv.weight[i, number * k + c, 0, 0] * xs[number, :, c]
                   for number in range(t) for c in range(k))
        torch.testing.assert_close(attention[:, i], head, **EXACT)


@pytest.mark.parametrize('size, is_attention', [(1, True), (3, False)])
def test_eq_5_holds_for_1x1_convolutions_only(size, is_attention, randomise):
    """No scalar weights give the output of a 3x3 convolution: the attention form collapses."""
    k, t = 3, 4
    conv = dense_layer_kernel(k, t, size, randomise)
    x = images(2, t * k, 8, 8)
    with torch.no_grad():
        channels = x.transpose(0, 1).flatten(1).T  # a row for every pixel
        head = conv(x)[:, 0].flatten()
        weights = torch.linalg.lstsq(channels, head[:, None]).solution
        rest = (channels @ weights).squeeze(1) - head
    assert (rest.norm() < 1e-9 * head.norm()) == is_attention


# Equations 6 to 8: time series, on the code's own stage.

class ScalarBlock(nn.Module):
    """x' = beta_1 x + term + i^t, and the hidden path is given x itself."""

    def __init__(self, beta, innovation):
        super().__init__()
        self.beta, self.innovation = beta, innovation

    def forward(self, x, hidden):
        out = self.beta * x + hidden.term + self.innovation
        hidden.features = BlockFeatures(x.clone(), None, out)
        return out


def scalar_stage(alpha, gamma, beta_1, beta_2, innovations):
    """The linear scalar form of a stage: equation 8 with innovations.

    The stage computes h' = g2(g1(x) + h), so that g1 = alpha / gamma and g2 = gamma.
    """
    readers = [nn.Conv2d(1, 1, 1, bias=False) for _ in innovations]
    stage = RLAStage(readers, 1, 1, len(innovations), RLAConfig(channels=1)).to(F64)
    with torch.no_grad():
        for reader in readers:
            reader.weight.fill_(beta_2)
            # A module with a hook is called as it is: the block gets a tensor.
            reader.register_forward_hook(lambda *_: None)
        stage.compress.weight.fill_(alpha / gamma)
        stage.recurrent.weight.zero_()
        stage.recurrent.weight[..., 1, 1] = gamma
    stage.norms = nn.ModuleList(nn.Identity() for _ in innovations)
    return stage, Stage(*(ScalarBlock(beta_1, i) for i in innovations))


def run_scalar(stage, blocks, x0):
    """x^0, x^1, ... and h^0, h^1, ..."""
    xs, hs = [x0], [0.0]
    handles = [stage.recurrent.register_forward_hook(lambda m, args, out: hs.append(out.item()))]
    handles += [block.register_forward_hook(lambda m, args, out: xs.append(out.item()))
                for block in blocks]
    with WithoutTanh(), torch.no_grad():
        stage(blocks, torch.full((1, 1, 1, 1), x0, dtype=F64), None)
    for handle in handles:
        handle.remove()
    return xs, hs


STEPS = 12


def test_eq_8_h_is_a_sum_of_powers_and_x_an_autoregression():
    """h^t = sum_l alpha gamma^{l-1} x^{t-l}; x^t as equation 6 with at most four parameters."""
    alpha, gamma, beta_1, beta_2 = 0.7, 0.6, 0.9, -0.4
    stage, blocks = scalar_stage(alpha, gamma, beta_1, beta_2, [0.0] * STEPS)
    xs, hs = run_scalar(stage, blocks, 1.3)
    for t in range(1, STEPS + 1):
        expected = sum(alpha * gamma**(lag - 1) * xs[t - lag] for lag in range(1, t + 1))
        assert hs[t] == pytest.approx(expected, rel=1e-12)
        # Equation 6: beta by lag alone.
        beta = {1: beta_1, **{lag: beta_2 * alpha * gamma**(lag - 2)
                              for lag in range(2, t + 1)}}
        assert xs[t] == pytest.approx(sum(beta[t - number] * xs[number] for number in range(t)),
                                      rel=1e-12)
    assert sum(p.numel() for p in stage.compress.parameters()) == 1, 'g1 is shared'


def test_eq_7_a_stage_with_innovations_is_an_arma_1_1():
    """With beta_1 = b - g and alpha beta_2 = (b - g) g, the stage's x^t is an ARMA(1, 1).

    So are the two forms of equation 7: x^t = b x^{t-1} + i^t - g i^{t-1}, and the AR form
    with the coefficients (b - g) g^{l-1}.
    """
    b, g = 0.8, 0.5
    innovations = torch.randn(STEPS, dtype=F64).tolist()
    stage, blocks = scalar_stage(alpha=g, gamma=g, beta_1=b - g, beta_2=b - g,
                                 innovations=innovations)
    xs, _ = run_scalar(stage, blocks, 0.0)
    i = [0.0, *innovations]
    for t in range(1, STEPS + 1):
        assert xs[t] == pytest.approx(b * xs[t - 1] + i[t] - g * i[t - 1], abs=1e-12)
        autoregression = sum((b - g) * g**(lag - 1) * xs[t - lag] for lag in range(1, t + 1))
        assert xs[t] == pytest.approx(autoregression + i[t], abs=1e-12)


@pytest.mark.parametrize('gamma, invertible', [(0.5, True), (1.2, False)])
def test_a2_only_an_invertible_arma_forgets_its_start(gamma, invertible):
    """The innovations follow from the past of x if |gamma| < 1 (A.2, invertibility)."""
    beta, steps = 0.8, 60
    generator = torch.Generator().manual_seed(0)
    i = torch.randn(steps, generator=generator, dtype=F64).tolist()
    x = [i[0]]
    for t in range(1, steps):
        x.append(beta * x[t - 1] + i[t] - gamma * i[t - 1])
    start = 20  # a past that begins here, not at 0
    recovered = x[-1] - sum((beta - gamma) * gamma**(lag - 1) * x[steps - 1 - lag]
                            for lag in range(1, start + 1))
    assert (abs(recovered - i[-1]) < 1e-4) == invertible


# Equations 9 and 10: sharing by lag and by ordinal number.

def contributions(sharing, k, depth, randomise):
    """What x^l adds in layer t, by (t, l), for the same features in every place."""
    block = randomise(DenseBlock(9, depth, k, sharing, dict(type='BN'))).to(F64).eval()
    feature = images(1, k, 4, 4)
    zero = torch.zeros_like(feature)
    with torch.no_grad():
        return block, {(t, number): block.shared(
            [feature if place == number else zero for place in range(1, t)])
            for t in range(2, depth + 1) for number in range(1, t)}


@pytest.mark.parametrize('sharing, pattern', [
    ('lag', lambda t, number: t - number), ('ordinal', lambda t, number: number)])
def test_eq_9_and_10_a_term_depends_on_the_lag_or_the_number_alone(sharing, pattern, randomise):
    _, terms = contributions(sharing, 3, 6, randomise)
    for one in terms:
        for other in terms:
            same = torch.allclose(terms[one], terms[other], **EXACT)
            assert same == (pattern(*one) == pattern(*other)), (one, other)


@pytest.mark.parametrize('sharing', ['lag', 'ordinal'])
def test_eq_9_and_10_the_convolution_of_x_0_stays_each_layers_own(sharing):
    """Conv1_0^t is not shared; x^0 has 3 + 2k = 27 channels; x^1 to x^15 share 15 kernels."""
    net = CifarDenseNet(100, growth=12, sharing=sharing)
    first = net.blocks[0]
    assert [layer.conv.in_channels for layer in first.conv1] == [27] * 16
    assert len({id(layer.conv.weight) for layer in first.conv1}) == 16
    assert first.shared.weights().shape == (15, 48, 12)


def test_sharing_takes_a_quarter_of_the_parameters():
    """Section 3.2: sharing reduces the parameters by 25% (0.20 M)."""
    with torch.device('meta'):
        counts = [sum(value.numel() for name, value in CifarDenseNet(sharing=sharing)
                      .state_dict().items() if not name.endswith('num_batches_tracked'))
                  for sharing in (None, 'lag', 'ordinal')]
    assert counts[1] == counts[2]
    assert (counts[0] - counts[1]) / 1e6 == pytest.approx(0.20, abs=0.005)
    assert 1 - counts[1] / counts[0] == pytest.approx(0.25, abs=0.01)


# Equation 11 and appendix A.3.

@pytest.mark.parametrize('variant', ['v1', 'v2', 'v3', 'v4', 'v5', 'v6'])
def test_eq_11_h_is_a_function_of_h_and_x_of_the_layer_before(variant, randomise):
    """h^t = g^t(h^{t-1}, x^{t-1}) and x^t = f^t(h^{t-1}, x^{t-1}), nonlinearities included.

    Substituted down to h^0 = 0, h^t is a function of x^{t-1}, ..., x^0: equation 1.
    """
    net = build('cifar', randomise, variant=variant)
    stage, blocks = stages_of(net)[0]
    xs = []
    handles = [block.register_forward_hook(lambda m, args, out: xs.append(out.clone()))
               for block in blocks]
    x0 = images(2, 4, 8, 8)
    with torch.no_grad():
        _, (h,) = stage(blocks, x0, None)
        for handle in handles:
            handle.remove()
        hidden = stage.initial_state(x0)[0]
        assert not hidden.any(), 'h^0 is zero (guideline 3)'
        for t, (x, block) in enumerate(zip([x0, *xs], blocks, strict=False)):
            features = block.features(x, stage.readers[t](hidden))
            torch.testing.assert_close(features.out, xs[t], **EXACT)
            hidden = plain_update(stage, t, hidden, features, variant)
    torch.testing.assert_close(h, hidden, **EXACT)


def plain_update(stage, t, h, features, variant):
    """Figure 4: what is compressed, and on which side of g2 it is added."""
    source = dict(v1='residual', v2='residual', v3='out', v4='out', v5='shortcut',
                  v6='shortcut')[variant]
    new = F.conv2d(getattr(features, source), stage.compress.weight)

    def g2(value):
        return F.conv2d(torch.tanh(stage.norms[t](value)), stage.recurrent.weight, padding=1)

    return g2(h + new) if variant in ('v1', 'v3', 'v5') else g2(h) + new


def record_updates(net, image):
    """For every stage what its g1 and g2 received, block by block; and the outputs.

    In v1 g2 receives g1(y^t) + h^{t-1}.
    """
    records = []
    handles = []
    for stage in (module for module in net.modules() if isinstance(module, RLAStage)):
        if not len(stage.norms):
            continue
        record = dict(stage=stage, ys=[], inputs=[])
        records.append(record)
        compress = stage.compress if isinstance(stage.compress, nn.ModuleList) \
            else [stage.compress]
        for module in compress:
            handles.append(module.register_forward_pre_hook(
                lambda _, args, record=record: record['ys'].append(args[0].clone())))
        for norm in stage.norms:
            handles.append(norm.register_forward_pre_hook(
                lambda _, args, record=record: record['inputs'].append(args[0].clone())))
    outs = net(image)
    for handle in handles:
        handle.remove()
    return records, outs


def own(module, t):
    return module[t] if isinstance(module, nn.ModuleList) else module


# MobileNetV2 and Xception share a recurrent convolution across stages of one resolution.
ALWAYS_SHARED = ('mobilenet', 'xception')


def averaged(h, stride):
    """The means of windows of ``stride`` pixels a side."""
    return h.unfold(2, stride, stride).unfold(3, stride, stride).mean((-2, -1))


@pytest.mark.parametrize('name, shared', [(name, shared) for name in NETWORKS
                                          for shared in (True, False)
                                          if shared or name not in ALWAYS_SHARED])
def test_eq_12_without_nonlinearities_h_is_a_sum_over_all_blocks(name, shared, randomise):
    """h^t = sum_k g2^k(g1(y^{t-k+1})) + g2^t(h^0), in every stage of every network.

    Unshared, this is the general recursion of A.3 with g_1^s and g_2^s of each layer's own.
    """
    net = build(name, randomise, **({} if shared else dict(shared=False)))
    with linear_hidden_path(net):
        records, outs = record_updates(net, images(1, 3, 64, 64))
        assert sum(len(record['ys']) for record in records) == sum(
            len(stage.norms) for stage, _ in stages_of(net))
        last = None
        for record in records:
            stage, ys, inputs = record['stage'], record['ys'], record['inputs']
            g1 = [own(stage.compress, t)(y) for t, y in enumerate(ys)]
            begin = inputs[0] - g1[0]  # h^0 of the stage, pooled
            if last is None:
                assert not begin.any(), 'h^0 = 0'
            else:
                torch.testing.assert_close(begin, averaged(last, stage.stride), **EXACT)
            for t in range(len(ys)):
                terms = [begin, *g1[:t + 1]]
                first = [0, *range(t + 1)]  # the first g2 that a term passes
                for place, start in enumerate(first):
                    for s in range(start, t + 1):
                        terms[place] = own(stage.recurrent, s)(terms[place])
                last = sum(terms)
                if t + 1 < len(ys):  # what block t + 1 adds its own term to
                    torch.testing.assert_close(inputs[t + 1] - g1[t + 1], last, **EXACT)
        if getattr(net, 'out_hidden', False):
            torch.testing.assert_close(outs[-1], last, **EXACT)


@pytest.mark.parametrize('variant', ['v1', 'v2'])
def test_a3_the_start_enters_as_a_constant(variant, randomise):
    """The last term of equation 12: h^0 passes every g2 once and adds to the rest."""
    net = build('cifar', randomise, variant=variant, exchange=False)
    stage, blocks = stages_of(net)[0]
    x, h0 = images(1, 4, 8, 8), images(1, 3, 8, 8)
    with linear_hidden_path(net):
        with_start, without = (stage(blocks, x, (start,))[1][0]
                               for start in (h0, torch.zeros_like(h0)))
        constant = h0
        for _ in blocks:
            constant = stage.recurrent(constant)
    torch.testing.assert_close(with_start - without, constant, **EXACT)


def test_a3_g1_is_additive_without_nonlinearities_only(randomise):
    """g_1^s(u + v) = g_1^s(u) + g_1^s(v), the assumption of A.3, needs norm and tanh ignored."""
    net = build('cifar', randomise)
    stage, _ = stages_of(net)[0]
    u, v = images(2, 1, 3, 8, 8)

    def g2(value):
        return stage.update(1, (value,), torch.zeros_like(value))[0]

    with torch.no_grad():
        assert_differ(g2(u + v), g2(u) + g2(v))
    with linear_hidden_path(net):
        torch.testing.assert_close(g2(u + v), g2(u) + g2(v), **EXACT)
