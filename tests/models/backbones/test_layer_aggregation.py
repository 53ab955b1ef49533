"""Layer aggregation: DenseNet's equations 3, 9 and 10, the dual path, RLA's additive form."""
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mmrla.models import CifarDenseNet, CifarDualPathNet, RLAResNet
from mmrla.models.lean.conditions import plain_path
from mmrla.models.rla import RLAStage
from mmrla.paper.counts import count_parameters, count_statistics

pytestmark = pytest.mark.usefixtures('each_device')


def classifier_values(net, classes=10):
    """Trainable values, and those with the norms' moving statistics."""
    trainable = count_parameters(net) + (net.feat_dim + 1) * classes
    return trainable, trainable + count_statistics(net)


@pytest.mark.parametrize('sharing, trainable, total, paper', [
    (None, 773_063, 797_187, '0.80'), ('lag', 584_063, 600_627, '0.60'),
    ('ordinal', 584_063, 600_627, '0.60')])
def test_densenet_has_the_papers_values(sharing, trainable, total, paper):
    with torch.device('meta'):
        net = CifarDenseNet(sharing=sharing)
    assert classifier_values(net) == (trainable, total)
    assert f'{total / 1e6:.2f}' == paper


def conv(layer, x, weight=None):
    """Norm, ReLU and convolution, of a layer's norm and a weight."""
    weight = layer.conv.weight if weight is None else weight
    return F.conv2d(F.relu(layer.norm(x)), weight, padding=weight.shape[-1] // 2)


def plain_block(block, x0, sharing, k):
    """Equations 3, 9 and 10, a term for every layer that is read."""
    xs = [x0]
    for t in range(1, len(block.conv1) + 1):
        conv1, conv3 = block.conv1[t - 1], block.conv3[t - 1]
        if sharing is None:
            total = conv(conv1, torch.cat(xs, 1))
        else:
            total = conv(conv1, x0)
            for number in range(1, t):
                place = t - number if sharing == 'lag' else number
                weight = block.shared.conv.weight[:, (place - 1) * k:place * k]
                norm = block.shared.norms[number - 1]
                total = total + F.conv2d(F.relu(norm(xs[number])), weight)
        xs.append(conv(conv3, total))
    return torch.cat(xs, 1)


def plain_densenet(net, image, sharing, k):
    x = torch.cat([image, F.conv2d(image, net.stem.weight, padding=1)], 1)
    for i, block in enumerate(net.blocks):
        x = plain_block(block, x, sharing, k)
        if i < 2:
            x = F.avg_pool2d(conv(net.transitions[i][0], x), 2)
    return net.final(x)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('sharing', [None, 'lag', 'ordinal'])
def test_densenet_computes_its_equation(sharing, training, randomise):
    net = randomise(CifarDenseNet(28, growth=3, sharing=sharing)).double().train(training)
    image = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    results = []
    for forward in (lambda x: net(x)[0], lambda x: plain_densenet(net, x, sharing, 3)):
        out = forward(image)
        results.append([out, *torch.autograd.grad(out.sin().sum(), list(net.parameters()))])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


def test_a_shared_densenet_is_a_densenet_with_repeated_kernels(randomise):
    """With one norm for all, Shared-Lag is DenseNet with equal kernels at equal lags."""
    k, c0 = 3, 9
    shared, plain = (CifarDenseNet(22, growth=k, sharing=sharing).eval()
                     for sharing in ('lag', None))
    randomise(shared)
    with torch.no_grad():
        for block, other in zip(shared.blocks, plain.blocks, strict=True):
            for module in (*block.shared.norms, *(layer.norm for layer in block.conv1)):
                module.reset_parameters()
            kernels = block.shared.weights()
            for t, (layer, target) in enumerate(zip(block.conv1, other.conv1, strict=True)):
                parts = [layer.conv.weight] + [kernels[t - number][..., None, None]
                                               for number in range(1, t + 1)]
                target.conv.weight.copy_(torch.cat(parts, 1))
            other.conv3.load_state_dict(block.conv3.state_dict())
        for name in ('stem', 'transitions', 'final'):
            getattr(plain, name).load_state_dict(getattr(shared, name).state_dict())
    assert plain.blocks[0].conv1[0].conv.in_channels == c0
    image = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(shared(image), plain(image), rtol=1e-4, atol=1e-5)


def test_the_dual_path_network_has_the_papers_parameters():
    with torch.device('meta'):
        net = CifarDualPathNet()
    trainable, _ = classifier_values(net)
    assert trainable == 2_127_826
    assert f'{trainable / 1e6:.2f}' == '2.13'


def plain_dual_path(net, image):
    """Chen et al.: two separate lists of features."""
    def run(x, norm, convolution):
        size = convolution.weight.shape[-1]
        return F.conv2d(F.relu(norm(x)), convolution.weight, None, convolution.stride, size // 2)

    residual, dense = net.stem(image), []
    for stage in net.stages:
        width = stage[0].convs[1].weight.shape[0] * 4
        for t, block in enumerate(stage):
            both = torch.cat([residual, *dense], 1)
            y = both
            for norm, convolution in zip(block.norms, block.convs, strict=True):
                y = run(y, norm, convolution)
            if t == 0:
                projected = F.conv2d(both, block.shortcut.weight, None, block.shortcut.stride)
                residual, dense = projected[:, :width], [projected[:, width:]]
            residual = residual + y[:, :width]
            dense = [*dense, y[:, width:]]
    return net.final(torch.cat([residual, *dense], 1))


def test_the_dual_path_network_computes_its_equation(randomise):
    net = randomise(CifarDualPathNet(29, growth=3, base_channels=4)).double().train()
    image = torch.randn(2, 3, 17, 16, dtype=torch.float64)
    results = []
    for forward in (lambda x: net(x)[0], lambda x: plain_dual_path(net, x)):
        out = forward(image)
        results.append([out, *torch.autograd.grad(out.sin().sum(), list(net.parameters()))])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


class WithoutNonlinearities(TorchFunctionMode):
    """Replace norms and tanh by the identity."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tanh, torch.Tensor.tanh_, F.batch_norm):
            return args[0]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize('depth', [18, 50])
def test_without_nonlinearities_h_is_a_sum_over_all_blocks(depth, randomise, monkeypatch):
    """Appendix A.3: h^t is the sum over k of g2^k(g1(y^{t-k+1})), in every stage."""
    net = randomise(RLAResNet(depth, base_channels=4, rla=dict(channels=3),
                              out_hidden=True)).double().eval()
    seen, residuals = [], []
    original = RLAStage.update
    for stage in net.rla:
        stage.compress.register_forward_pre_hook(lambda _, inputs: residuals.append(inputs[0]))

    def update(stage, t, state, new):
        after = original(stage, t, state, new)
        seen.append((stage, t, state[0], residuals[-1], after[0]))
        return after

    monkeypatch.setattr(RLAStage, 'update', update)
    with plain_path(), WithoutNonlinearities(), torch.no_grad():
        net(torch.randn(1, 3, 64, 64, dtype=torch.float64))
    assert len(seen) == sum(net.stage_blocks)
    for i, (stage, t, *_, h) in enumerate(seen):
        steps = seen[i - t:i + 1]
        # The initial state of the stage passes through g2 once per block.
        terms = [stage.pool(steps[0][2])] + [stage.compress(y) for *_, y, _ in steps]
        powers = [t + 1, *range(t + 1, 0, -1)]
        for place, power in enumerate(powers):
            for _ in range(power):
                terms[place] = F.conv2d(terms[place], stage.recurrent.weight, padding=1)
        torch.testing.assert_close(h, sum(terms), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('build, arguments, parts', [
    (CifarDenseNet, dict(depth=99), ('depth=99', '6n + 4')),
    (CifarDenseNet, dict(depth=10), ('depth=10', '6n + 4')),
    (CifarDenseNet, dict(growth=0), ('growth=0',)),
    (CifarDenseNet, dict(sharing='layer'), ("'layer'", "None, 'lag', 'ordinal'")),
    (CifarDenseNet, dict(compression=0), ('compression=0',)),
    (CifarDualPathNet, dict(depth=110.0), ('depth=110.0',)),
    (CifarDualPathNet, dict(depth=100), ('depth=100', '9n + 2')),
    (CifarDualPathNet, dict(growth='12'), ("growth='12'",))])
def test_a_wrong_value_is_named(build, arguments, parts):
    with pytest.raises(ValueError) as error:
        build(**arguments)
    for part in parts:
        assert part in str(error.value)
