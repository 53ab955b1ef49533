"""CBAM, GC and non-local blocks: plain computations, counts, where they stand."""
import pytest
import torch
import torch.nn.functional as F

from mmrla.models import ATTENTIONS, RLAResNet
from mmrla.models.layers.attention import build_attention
from mmrla.paper.counts import count_parameters

pytestmark = pytest.mark.usefixtures('each_device')

C = 32


def cbam(module, x):
    """Woo et al., equations 2 and 3, in that order."""
    first, second = module.fc[0].weight, module.fc[2].weight

    def mlp(pooled):
        return F.relu(pooled @ first.T) @ second.T

    x = x * torch.sigmoid(mlp(x.mean((2, 3))) + mlp(x.amax((2, 3))))[:, :, None, None]
    planes = torch.stack([x.max(1).values, x.mean(1)], 1)
    weight = module.conv.weight
    logits = sum(F.conv2d(planes[:, i:i + 1], weight[:, i:i + 1], padding=3) for i in range(2))
    norm = module.norm
    logits = (logits - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps)
    return x * torch.sigmoid(logits * norm.weight + norm.bias)


def gc(module, x):
    """Cao et al., equation 5: attention pooling, a bottleneck, addition."""
    logits = F.conv2d(x, module.conv_mask.weight, module.conv_mask.bias).flatten(1)
    context = torch.einsum('ncp,np->nc', x.flatten(2), logits.softmax(1))
    narrow, norm, _, wide = module.channel_add_conv
    z = F.linear(context, narrow.weight.flatten(1), narrow.bias)
    z = (z - z.mean(1, True)) / torch.sqrt(z.var(1, unbiased=False, keepdim=True) + norm.eps)
    z = F.relu(z * norm.weight.flatten() + norm.bias.flatten())
    return x + F.linear(z, wide.weight.flatten(1), wide.bias)[:, :, None, None]


def non_local(module, x):
    """Wang et al., equations 1 and 4: every pixel attends to every pixel."""
    def embed(part):
        conv = getattr(module, part).conv
        return F.conv2d(x, conv.weight, conv.bias).flatten(2)

    theta, phi, g = map(embed, ('theta', 'phi', 'g'))
    pairs = torch.einsum('ncp,ncq->npq', theta, phi) / theta.shape[1]**0.5
    y = torch.einsum('npq,ncq->ncp', pairs.softmax(2), g).view(len(x), -1, *x.shape[2:])
    out = module.conv_out.conv
    return x + F.conv2d(y, out.weight, out.bias)


PLAIN = dict(CBAM=cbam, GC=gc, NL=non_local)


@pytest.mark.parametrize('name', PLAIN)
def test_it_computes_the_equations_of_its_paper(name, randomise):
    module = randomise(build_attention(dict(type=name), C)).double().eval()
    x = torch.randn(2, C, 5, 7, dtype=torch.float64)
    torch.testing.assert_close(module(x), PLAIN[name](module, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('name, count', [
    ('SE', 2 * C * C // 16), ('CBAM', 2 * C * C // 16 + 2 * 49 + 2),
    ('GC', 2 * C * C // 16 + C + 1 + C // 16 + C + 2 * C // 16),
    ('NL', 2 * C * C + 3 * C // 2 + C)])
def test_parameters(name, count):
    assert count_parameters(build_attention(dict(type=name), C)) == count


@pytest.mark.parametrize('name', ['GC', 'NL'])
@pytest.mark.parametrize('rla', [None, dict(channels=4)])
def test_context_blocks_start_as_the_identity_and_learn(name, rla):
    net = RLAResNet(18, base_channels=32, rla=rla, attention=dict(type=name), norm_eval=False,
                    zero_init_residual=False)
    net.init_weights()
    x = torch.randn(2, 32, 5, 5)
    assert torch.equal(net.layer1[0].attention(x), x)
    sum(out.square().mean() for out in net(torch.randn(2, 3, 64, 64))).backward()
    last = net.layer1[0].attention
    last = last.channel_add_conv[-1] if name == 'GC' else last.conv_out.conv
    assert last.weight.grad.abs().max() > 0


@pytest.mark.parametrize('name', ATTENTIONS)
def test_every_parameter_gets_a_gradient_with_rla(name, randomise):
    net = randomise(RLAResNet(18, base_channels=16, rla=dict(channels=4), norm_eval=False,
                              attention=dict(type=name))).train()
    sum(out.square().mean() for out in net(torch.randn(2, 3, 65, 64))).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()
            ] == []


def attended(net):
    return [name for name, module in net.named_modules() if name.endswith('attention')]


@pytest.mark.parametrize('placement, expected', [
    (dict(stages=(False, False, True, False), blocks=(-2,)), ['layer3.0.attention']),
    (dict(stages=(False, True, False, False)), ['layer2.0.attention', 'layer2.1.attention']),
    (dict(blocks=(0,)), [f'layer{i}.0.attention' for i in (1, 2, 3, 4)])])
def test_stages_and_blocks_select_where_it_is(placement, expected):
    net = RLAResNet(18, base_channels=16, attention=dict(type='GC', **placement))
    assert attended(net) == expected


@pytest.mark.parametrize('attention, parts', [
    (dict(type='CBAN'), ("'CBAN'", "'CBAM'")),
    (dict(type='GC', ratio=1000), ('attention.ratio=1000', '16 channels')),
    (dict(type='NL', ratio=0.5), ('attention.ratio=0.5',)),
    (dict(type='CBAM', kernel_size=4), ('kernel_size=4', 'odd')),
    (dict(type='GC', stages=(True,)), ('attention.stages', '4 entries')),
    (dict(type='GC', blocks=(2,)), ('attention.blocks', '2 blocks')),
    (dict(type='GC', width=3), ('width',))])
def test_a_wrong_value_is_named(attention, parts):
    with pytest.raises(ValueError) as error:
        RLAResNet(18, base_channels=16, attention=attention)
    for part in parts:
        assert part in str(error.value)
