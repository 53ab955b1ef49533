"""Measurements on networks: shared weights, the hidden state and its readers."""
import numpy as np
import pytest
import torch

from mmrla.models import CifarDenseNet, RLACifarResNet, RLAMobileNetV2, RLAResNet, RLAXception
from mmrla.paper.figures import (
    fit_exponential,
    hidden_state_unread,
    run_along_depth,
    shared_weight_norms,
)


@pytest.mark.parametrize('scale, rate', [(40.0, 0.2), (3.0, 1.5), (0.5, -0.3), (7.0, 1e-3)])
def test_the_fit_recovers_an_exponential(scale, rate):
    y = scale * np.exp(-rate * np.arange(1, 16))
    fit = fit_exponential(y)
    assert (fit.scale, fit.rate) == pytest.approx((scale, rate), rel=1e-4)
    assert fit.r_squared == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(fit.at(np.arange(1, 16)), y, rtol=1e-4)


def test_the_fit_agrees_with_scipy():
    from scipy.optimize import curve_fit
    x = np.arange(1, 16)
    y = 30 * np.exp(-0.25 * x) + np.random.default_rng(0).normal(0, 2, 15)
    (scale, rate), _ = curve_fit(lambda x, a, b: a * np.exp(-b * x), x, y, p0=(20, 0.1))
    fit = fit_exponential(y)
    assert (fit.scale, fit.rate) == pytest.approx((scale, rate), rel=1e-4)
    rest = y - scale * np.exp(-rate * x)
    assert fit.r_squared == pytest.approx(1 - rest @ rest / (15 * y.var()), rel=1e-6)


def test_constant_values_cannot_be_fitted():
    with pytest.raises(ValueError, match='at least 3 values that differ'):
        fit_exponential(np.ones(5))


@pytest.mark.parametrize('sharing', ['lag', 'ordinal'])
def test_norms_belong_to_the_kernel_of_each_lag_or_number(sharing):
    k = 2
    net = CifarDenseNet(28, growth=k, sharing=sharing)
    with torch.no_grad():
        for place in range(3):  # Conv1_1, Conv1_2, Conv1_3 of the first block
            net.blocks[0].shared.conv.weight[:, place * k:(place + 1) * k] = -(place + 1.0)
    norms = shared_weight_norms(net)
    assert len(norms) == 3
    assert norms[0].tolist() == [4 * k * k * place for place in (1, 2, 3)]


def test_a_network_without_shared_weights_is_named():
    with pytest.raises(ValueError, match='CifarDenseNet has no shared 1x1'):
        shared_weight_norms(CifarDenseNet(16))


NETWORKS = {
    'resnet': (lambda **kw: RLAResNet(18, base_channels=8, **kw), 8),
    'cifar': (lambda **kw: RLACifarResNet(20, base_channels=4, **kw), 9),
    'mobilenet': (lambda **kw: RLAMobileNetV2(widen_factor=0.25, **kw), 17),
    'xception': (lambda **kw: RLAXception(base_channels=2, num_middle=2, **kw), 7),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_every_block_is_recorded_and_the_network_is_unchanged(name, randomise):
    build, blocks = NETWORKS[name]
    net = randomise(build(rla=dict(channels=4))).eval()
    image = torch.randn(1, 3, 64, 64)
    before = net(image)
    steps = run_along_depth(net, image)
    assert len(steps) == blocks
    assert all(step.hidden is not None for step in steps[:-1])
    assert all(0 < step.share < 1 and 0 < step.even_share < 1 for step in steps)
    for out, expected in zip(net(image), before, strict=True):
        assert torch.equal(out, expected)
    assert not any(module._forward_hooks for module in net.modules())


def test_records_equal_the_values_of_the_network(randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4), out_hidden=True)).eval()
    image = torch.randn(1, 3, 64, 64)
    *outs, h = net(image)
    steps = run_along_depth(net, image)
    for stage, out in enumerate(outs):
        torch.testing.assert_close(steps[2 * stage + 1].out, out)
    torch.testing.assert_close(steps[-1].hidden, h)
    for block, step in enumerate(steps):
        stage, t = divmod(block, 2)
        w_h = net.rla[stage].readers[t].weight.abs().sum()
        w_x = getattr(net, f'layer{stage + 1}')[t].conv1.weight.abs().sum()
        assert step.share == pytest.approx(float(w_h / (w_h + w_x)), rel=1e-5)
        inputs = getattr(net, f'layer{stage + 1}')[t].conv1.in_channels
        assert step.even_share == pytest.approx(4 / (inputs + 4))


def test_without_reading_h_the_network_is_the_plain_one(randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4))).eval()
    plain = RLAResNet(18, base_channels=8, rla=None).eval()
    plain.load_state_dict({name: value for name, value in net.state_dict().items()
                           if not name.startswith('rla.')})
    image = torch.randn(1, 3, 64, 64)
    with hidden_state_unread(net):
        for step, expected in zip(run_along_depth(net, image), run_along_depth(plain, image),
                                  strict=True):
            torch.testing.assert_close(step.out, expected.out)
    assert not torch.allclose(net(image)[-1], plain(image)[-1])
