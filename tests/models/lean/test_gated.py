"""Channel gates that are folded into the convolution before them."""
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from mmrla.commands.measurements import saved_for_backward
from mmrla.export.onnx_file import convert, export_network
from mmrla.models import RLAResNet, RLAResNeXt
from mmrla.models.layers.attention import ECA, SE
from mmrla.models.lean import conv_norm
from mmrla.models.lean.conditions import plain_path
from mmrla.models.lean.conv_norm import convolve, last_conv_norm
from mmrla.models.lean.fuse import fuse
from mmrla.models.lean.gated import ScaleChannels, pointwise
from support.networks import results

pytestmark = pytest.mark.usefixtures('each_device')

GATES = dict(SE=dict(type='SE', ratio=4), ECA=dict(type='ECA'))


def gated(depth=50, attention='ECA', variant='v1', **kwargs):
    """A small ResNet with a gate, and with a hidden path unless the variant is None."""
    rla = variant and dict(channels=3, variant=variant)
    return RLAResNet(depth, base_channels=8, attention=GATES[attention], rla=rla, **kwargs)


def assert_forms_agree(net, image):
    """The memory-saving forms give the plain outputs, gradients and statistics."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    memory_saving = results(net, image)
    net.load_state_dict(state)
    with plain_path():
        plain = results(net, image)
    assert set(memory_saving) == set(plain)
    for name, value in plain.items():
        torch.testing.assert_close(
            memory_saving[name], value, rtol=0, atol=1e-9 * max(1, value.abs().max().item()),
            msg=lambda text, name=name: f'{name}: {text}')


@pytest.mark.parametrize('norm_eval', [True, False])
@pytest.mark.parametrize('attention', GATES)
@pytest.mark.parametrize('depth, variant, batch, layout', [
    (50, 'v1', 2, torch.contiguous_format),
    (50, 'v1', 1, torch.channels_last),
    (50, 'v2', 2, torch.channels_last),
    (50, 'v3', 2, torch.contiguous_format),
    (50, 'v5', 1, torch.contiguous_format),
    (50, None, 2, torch.contiguous_format),
    (18, 'v1', 2, torch.contiguous_format),
    (18, 'v1', 2, torch.channels_last),
])
def test_gates_in_both_forms_agree(depth, attention, variant, batch, layout, norm_eval, randomise):
    net = randomise(gated(depth, attention, variant, norm_eval=norm_eval)).double()
    net = net.to(memory_format=layout).train()
    image = torch.randn(batch, 3, 97, 131, dtype=torch.float64).to(memory_format=layout)
    assert_forms_agree(net, image)


def test_gates_agree_with_activations_recomputed(randomise):
    net = randomise(gated(with_cp=True)).double().train()
    assert_forms_agree(net, torch.randn(2, 3, 97, 131, dtype=torch.float64, requires_grad=True))


def test_gates_at_some_blocks_only_agree(randomise):
    net = randomise(RLAResNet(50, base_channels=8, rla=dict(channels=3),
                              attention=dict(type='ECA', blocks=(0, -1)))).double().train()
    assert_forms_agree(net, torch.randn(2, 3, 97, 131, dtype=torch.float64))


def test_a_gate_under_autocast_is_close_to_full_precision(randomise, each_device):
    net = randomise(gated()).train()
    image = torch.randn(2, 3, 97, 131)
    with torch.autocast(each_device.type, torch.bfloat16):
        outs = net(image)
    sum(out.float().mean() for out in outs).backward()
    for out, expected in zip(outs, net(image), strict=True):
        assert (out - expected).abs().max() < 0.05 * expected.abs().max()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_of_channels_that_are_scaled_in_place():
    scale, offset = randn(3), randn(3)

    def function(z, factors):
        y = z * scale[:, None, None] + offset[:, None, None]
        return ScaleChannels.apply(y, factors, z.detach(), scale.detach(), offset.detach())

    assert torch.autograd.gradcheck(function, (randn(2, 3, 4, 5), randn(2, 3)))


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('batch', [1, 3])
def test_gradcheck_of_a_product_with_weights_of_each_image(batch, layout):
    def function(x, weight, bias):
        return pointwise(x.contiguous(memory_format=layout), weight, bias)

    x, weight, bias = randn(batch, 4, 3, 5), randn(batch, 2, 4), randn(batch, 2)
    assert torch.autograd.gradcheck(function, (x, weight, bias))
    expected = torch.einsum('nkc,nchw->nkhw', weight, x) + bias[..., None, None]
    torch.testing.assert_close(function(x, weight, bias), expected)
    assert function(x, weight, bias).is_contiguous(memory_format=layout)


@pytest.mark.parametrize('build_gate', [lambda: SE(8, ratio=4), lambda: ECA(8)], ids=['SE', 'ECA'])
@pytest.mark.parametrize('training', [True, False])
def test_a_gated_feature_is_convolved_without_y(build_gate, training, randomise):
    conv, norm, gate = nn.Conv2d(2, 8, 1, bias=False), nn.BatchNorm2d(8), build_gate()
    compress = nn.Conv2d(8, 3, 1, bias=False)
    for module in (conv, norm, compress, gate):
        randomise(module).double()
    norm.train(training)
    r = randn(2, 2, 9, 7)
    y = gate(norm(conv(r)))
    feature = last_conv_norm(conv, norm, r, gate)
    torch.testing.assert_close(feature.value, y)
    torch.testing.assert_close(convolve(compress, feature), compress(y))


def test_the_gate_is_called_if_it_has_a_hook(randomise):
    net = randomise(gated()).eval()
    calls = []
    net.layer1[0].attention.register_forward_hook(lambda *_: calls.append(1))
    net(torch.randn(1, 3, 64, 64))
    assert calls


@pytest.mark.parametrize('variant, limit', [('v1', 0.75), (None, 0.75)])
def test_a_gate_does_not_save_its_input(variant, limit, randomise):
    net = randomise(gated(variant=variant)).train()
    image = torch.randn(2, 3, 160, 160)
    memory_saving = saved_for_backward(net, lambda: net(image))
    with plain_path():
        plain = saved_for_backward(net, lambda: net(image))
    assert memory_saving < limit * plain


@pytest.mark.parametrize('attention', GATES)
@pytest.mark.parametrize('build, variant', [
    *((build, variant) for build in (18, 50, 'x50') for variant in ('v1', 'v3')),
    (50, 'v5'), (50, None)])
@pytest.mark.parametrize('blocks', [None, (0, -1)])
def test_a_fused_gate_computes_the_same(build, variant, attention, blocks, randomise):
    arguments = dict(base_channels=8, rla=variant and dict(channels=3, variant=variant),
                     attention=dict(GATES[attention], **({'blocks': blocks} if blocks else {})))
    net = (RLAResNeXt(depth=50, groups=2, base_width=4, **arguments) if build == 'x50'
           else RLAResNet(build, **arguments))
    randomise(net).double().eval()
    image = torch.randn(2, 3, 97, 131, dtype=torch.float64)
    with torch.no_grad():
        expected, outs = net(image), fuse(net)(image)
    assert not any(isinstance(module, nn.BatchNorm2d)
                   for stage in net.stages_with_blocks() for module in stage.modules())
    for out, value in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, value, rtol=1e-9, atol=1e-9)


def folds(net, monkeypatch):
    """Whether a network folds any norm."""
    calls = []
    fold = conv_norm.fold
    monkeypatch.setattr(conv_norm, 'fold', lambda *args: calls.append(1) or fold(*args))
    net(torch.randn(1, 3, 64, 64))
    return bool(calls)


@pytest.mark.parametrize('arguments, expected', [
    (dict(rla=dict(channels=3)), True),
    (dict(rla=dict(channels=3), memory_saving=False), False),
    (dict(rla=None), False),
    (dict(rla=None, memory_saving=True), True),
    (dict(rla=None, attention=dict(type='ECA')), True),
])
def test_the_key_memory_saving_selects_the_forms(arguments, expected, monkeypatch):
    assert folds(RLAResNet(50, base_channels=8, **arguments).eval(), monkeypatch) is expected


def test_a_plain_resnet_may_use_the_memory_saving_forms(randomise):
    net = randomise(RLAResNet(50, base_channels=8, rla=None, memory_saving=True)).double().train()
    assert_forms_agree(net, torch.randn(2, 3, 97, 131, dtype=torch.float64))


def test_an_environment_variable_turns_all_memory_saving_forms_off():
    code = ('import torch; from mmrla.models.lean.conditions import may_save_memory; '
            'print(may_save_memory(torch.zeros(1)))')
    answers = [subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                              check=True, env={**os.environ, 'MMRLA_MEMORY_SAVING': value}).stdout
               for value in ('0', '1')]
    assert [answer.strip() for answer in answers] == ['False', 'True']


@torch.no_grad()
@pytest.mark.parametrize('attention', GATES)
def test_an_exported_network_reads_the_narrow_input_for_the_hidden_path(attention, randomise):
    import onnxruntime
    net = fuse(randomise(gated(attention=attention, num_stages=2, strides=(1, 2),
                               dilations=(1, 1), out_indices=(0, 1)))).cpu()
    program = export_network(net)
    convolutions = [node for node in program.graph.nodes if 'conv2d' in str(node.target)]
    plain, readers, recurrent = 24, 7, 6  # nothing reads the h of the last block
    assert len(convolutions) == plain + readers + recurrent, 'W y is no convolution'
    session = onnxruntime.InferenceSession(
        convert(program).SerializeToString(), providers=['CPUExecutionProvider'])
    for size in ((2, 3, 97, 129), (1, 3, 75, 133)):
        images = torch.randn(size)
        outs = session.run(None, dict(images=images.numpy()))
        for out, same, expected in zip(
                outs, program.module()(images), net(images), strict=True):
            for each in (torch.as_tensor(out), same):
                assert (each - expected).abs().max() <= 1e-4 * expected.abs().max()


@torch.no_grad()
def test_a_fused_network_with_gates_compiles_into_one_graph(randomise):
    torch._dynamo.reset()
    net, images = fuse(randomise(gated())), torch.randn(2, 3, 65, 97)
    compiled = torch.compile(net, fullgraph=True, backend='aot_eager')
    for out, expected in zip(compiled(images), net(images), strict=True):
        assert (out - expected).abs().max() <= 1e-4 * expected.abs().max()
