"""The paper's ablations of the hidden path, each a key of ``rla=dict(...)``."""
import pytest
import torch
import torch.nn.functional as F

from mmrla.models import RLAPooling, RLAResNet
from mmrla.paper.counts import GIGA, count_flops, count_parameters

pytestmark = pytest.mark.usefixtures('each_device')

ABLATIONS = {
    'unshared': dict(shared=False),
    'no exchange': dict(exchange=False),
    'ConvLSTM': dict(cell='lstm'),
    'ConvGRU': dict(cell='gru'),
    'post-act': dict(pre_act=False),
    'unshared ConvLSTM': dict(cell='lstm', shared=False),
}
# Parameters to the unit, FLOPs as the paper prints them (the GRU is not in it).
COUNTS = {
    'unshared': (50, 26341736, '4.17'), 'unshared 101': (101, 46187944, '7.79'),
    'no exchange': (50, 25749864, '4.11'), 'ConvLSTM': (50, 26128680, '5.00'),
    'post-act': (50, 25870632, '4.17'), 'ConvGRU': (50, 26056104, None),
}


class Classifier(torch.nn.Module):
    """A backbone with the paper's output, with a norm of h where the paper has one."""

    def __init__(self, backbone, k, channels=2048):
        super().__init__()
        config = backbone.rla[0].config if backbone.rla is not None else None
        with_norm = config is None or config.cell == 'conv' and config.pre_act
        self.backbone = backbone
        self.neck = RLAPooling(k, **({} if with_norm else dict(norm_cfg=None))) if k else None
        self.fc = torch.nn.Linear(channels + k, 1000)

    def forward(self, x):
        outs = self.backbone(x)
        if self.neck is None:
            return self.fc(F.adaptive_avg_pool2d(outs[-1], 1).flatten(1))
        return self.fc(self.neck(outs)[0])


@pytest.mark.parametrize('case', COUNTS)
def test_counts_are_the_papers(case):
    depth, parameters, flops = COUNTS[case]
    with torch.device('meta'):
        backbone = RLAResNet(depth, out_hidden=True, rla=ABLATIONS[case.removesuffix(' 101')])
        model = Classifier(backbone, 32).eval()
        assert count_parameters(model) == parameters
        if flops:
            assert f'{count_flops(model) / GIGA:.2f}' == flops


def test_channel_plus_32():
    with torch.device('meta'):
        model = Classifier(RLAResNet(50, rla=None, extra_channels=8), 0, 2048 + 32).eval()
        assert count_parameters(model) == 26794280
        assert f'{count_flops(model) / GIGA:.2f}' == '4.24'


def lstm(cell, x, state):
    h, c = state
    i, f, o, g = F.conv2d(torch.cat([x, h], 1), cell.gates.weight, padding=1).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(cell, x, state):
    def norm(layer, values):
        flat = values.flatten(1)
        mean, variance = flat.mean(1, True), flat.var(1, unbiased=False, keepdim=True)
        values = ((flat - mean) / torch.sqrt(variance + 1e-6)).view_as(values)
        return values * layer.weight.view(-1, 1, 1) + layer.bias.view(-1, 1, 1)

    h, = state
    k = h.shape[1]
    gates = F.conv2d(torch.cat([x, h], 1), cell.gates.weight, cell.gates.bias, padding=1)
    reset = torch.sigmoid(norm(cell.reset_norm, gates[:, :k]))
    update = torch.sigmoid(norm(cell.update_norm, gates[:, k:]))
    candidate = torch.tanh(norm(cell.candidate_norm, F.conv2d(
        torch.cat([x, reset * h], 1), cell.candidate.weight, cell.candidate.bias, padding=1)))
    return (update * h + (1 - update) * candidate,)


def plain_forward(net, image, shared=True, exchange=True, cell='conv', pre_act=True):
    """The equations of an ablation, block by block."""
    x = F.max_pool2d(F.relu(net.bn1(net.conv1(image))), 3, 2, 1)
    zeros = torch.zeros(x.shape[0], net.rla[0].channels, *x.shape[2:], dtype=x.dtype)
    state = (zeros, zeros) if cell == 'lstm' else (zeros,)
    outs = []
    for stage, rla in zip((net.layer1, net.layer2, net.layer3, net.layer4), net.rla, strict=True):
        for t, block in enumerate(stage):
            compress = rla.compress if shared else rla.compress[t]
            unit = rla.recurrent if shared else rla.recurrent[t]
            y = block.conv1(x)
            if exchange:
                reader = rla.readers[t]
                y = y + F.conv2d(state[0], reader.weight, None, reader.stride, reader.padding)
            y = block.bn2(block.conv2(F.relu(block.bn1(y))))
            x = F.relu(y + (x if block.downsample is None else block.downsample(x)))
            if y.shape[2:] != state[0].shape[2:]:
                state = tuple(F.avg_pool2d(part, 2) for part in state)
            new = F.conv2d(y, compress.weight)
            if cell == 'conv':
                h = state[0] + new
                if pre_act:
                    h = F.conv2d(torch.tanh(rla.norms[t](h)), unit.weight, padding=1)
                else:
                    h = torch.tanh(rla.norms[t](F.conv2d(h, unit.weight, padding=1)))
                state = (h,)
            else:
                step = dict(lstm=lstm, gru=gru)[cell]
                state = step(unit, torch.tanh(rla.norms[t](new)), state)
        outs.append(x)
    return [*outs, state[0]]


@pytest.mark.parametrize('case', ABLATIONS)
def test_outputs_and_gradients_are_those_of_the_equations(case, randomise):
    net = randomise(RLAResNet(18, base_channels=4, norm_eval=False, out_hidden=True,
                              rla=dict(channels=3, **ABLATIONS[case]))).double().train()
    image = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    results = []
    for forward in (net, lambda x: plain_forward(net, x, **ABLATIONS[case])):
        outs = forward(image)
        total = sum(out.sin().sum() for out in outs)
        results.append([*outs, *torch.autograd.grad(total, list(net.parameters()))])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize('case', [case for case in ABLATIONS if case != 'no exchange'])
def test_a_detector_has_no_unused_parameters(case, randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4, **ABLATIONS[case])))
    sum(out.square().mean() for out in net.train()(torch.randn(2, 3, 65, 64))).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize('rla, parts', [
    (dict(cell='rnn'), ("'rnn'", "'conv', 'lstm', 'gru'")),
    (dict(shared='no'), ("rla.shared='no'",)),
    (dict(exchange=False), ('exchange=False', 'out_hidden=False')),
    (dict(cell='lstm', variant='v2'), ("'v2'", 'v1, v3, v5')),
    (dict(cell='gru', pre_act=False), ('pre_act=False', "'gru'")),
])
def test_incompatible_settings_are_named(rla, parts):
    with pytest.raises(ValueError) as error:
        RLAResNet(18, rla=rla)
    for part in parts:
        assert part in str(error.value)
