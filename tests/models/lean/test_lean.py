"""The memory-saving forms compute the same as the plain ones, and save less for backward."""
import copy

import pytest
import torch
import torch.nn.functional as F
from mmdet.models import ResNet
from torch import nn

from mmrla.commands.measurements import saved_for_backward
from mmrla.models import RLAResNet
from mmrla.models.lean.batch_norm import BatchNormStatistics
from mmrla.models.lean.conditions import has_hooks, plain_path
from mmrla.models.lean.conv_norm import NormedConv, conv_norm, convolve, last_conv_norm, read
from mmrla.models.lean.pooling import MaxPool
from support.memory import saved_sizes
from support.networks import SMALL_NETWORKS, results

pytestmark = pytest.mark.usefixtures('each_device')

RLA = dict(channels=3)


# In eval mode, the values of a network with standardised weights overflow.
@pytest.mark.parametrize('case, training', [
    (case, training) for case in SMALL_NETWORKS for training in (True, False)
    if training or case != 'standardised weights'])
def test_memory_saving_and_plain_forms_agree(case, training, randomise):
    net = randomise(SMALL_NETWORKS[case]()).double().train(training)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    image = torch.randn(2, 3, 65, 72, dtype=torch.float64)
    memory_saving = results(net, image)
    with torch.no_grad():
        net.load_state_dict(state)
        inferred = net(image)
    net.load_state_dict(state)
    with plain_path():
        plain = results(net, image)
    assert set(memory_saving) == set(plain)
    for name, value in plain.items():
        torch.testing.assert_close(memory_saving[name], value, rtol=1e-9, atol=1e-9,
                                   msg=lambda text, name=name: f'{name}: {text}')
    for i, out in enumerate(inferred):
        torch.testing.assert_close(out, plain[f'out {i}'], rtol=1e-9, atol=1e-9)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_of_a_batch_norm_with_its_statistics():
    norm = nn.BatchNorm2d(3).double()

    def function(z, weight, bias):
        return BatchNormStatistics.apply(z, weight, bias, norm)

    arguments = randn(2, 3, 4, 5), randn(3), randn(3)
    assert torch.autograd.gradcheck(function, arguments)
    # Each output separately: the others then have no gradient.
    for i in range(3):
        assert torch.autograd.gradcheck(lambda *a, i=i: function(*a)[i], arguments)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_statistics_of_many_values_equal_those_of_torch(dtype, randomise):
    ours = randomise(nn.BatchNorm2d(4)).to(dtype)
    theirs = copy.deepcopy(ours)
    # Far from zero: a variance from E[z^2] - E[z]^2 would lose most of its digits.
    z = torch.randn(2, 4, 200, 200, dtype=dtype) + 300
    y, mean, invstd = BatchNormStatistics.apply(z, ours.weight, ours.bias, ours)
    torch.testing.assert_close(y, theirs(z), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mean, z.mean((0, 2, 3)))
    torch.testing.assert_close(invstd, z.var((0, 2, 3), correction=0).add(1e-5).rsqrt())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@pytest.mark.parametrize('training', [True, False])
def test_memory_saving_and_plain_forms_agree_on_large_images(training, randomise):
    net = randomise(RLAResNet(50, base_channels=16, norm_eval=False, rla=RLA)).double()
    net.train(training)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    image = torch.randn(2, 3, 193, 200, dtype=torch.float64)
    memory_saving = results(net, image)
    net.load_state_dict(state)
    with plain_path():
        plain = results(net, image)
    # Relative to the largest value: these gradients are sums of terms that cancel.
    for name, value in plain.items():
        largest = value.abs().max().item()
        torch.testing.assert_close(memory_saving[name], value, rtol=0,
                                   atol=1e-9 * max(1, largest),
                                   msg=lambda text, name=name: f'{name}: {text}')


@pytest.mark.parametrize('bias', [True, False])
def test_gradcheck_of_a_folded_norm(bias, randomise):
    norm = randomise(nn.BatchNorm2d(6)).double().eval()
    conv = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=bias).double()
    reader = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False).double()
    x, h = randn(2, 2, 9, 8), randn(2, 3, 9, 8)

    def function(x, h, *weights):
        return conv_norm(conv, norm, x, read(reader, h))

    torch.testing.assert_close(function(x, h), norm(conv(x) + reader(h)))
    arguments = x, h, reader.weight, *conv.parameters(), *norm.parameters()
    assert torch.autograd.gradcheck(function, arguments)


def test_a_folded_convolution_does_not_save_its_output(randomise):
    conv, norm = nn.Conv2d(4, 8, 1, bias=False), randomise(nn.BatchNorm2d(8)).eval()
    x = torch.randn(2, 4, 32, 32, requires_grad=True)
    with saved_sizes() as sizes:
        conv_norm(conv, norm, x)
    assert 2 * 8 * 32 * 32 not in sizes and max(sizes) == x.numel()


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('size', [2, 3])  # W y from z, and from r
def test_gradcheck_of_compressing_a_residual(training, size, randomise):
    norm = randomise(nn.BatchNorm2d(8)).double().train(training)
    conv = nn.Conv2d(4, 8, 1, bias=False).double()
    compress = nn.Conv2d(8, 2, 1, bias=False).double()
    shortcut = randn(3, 8, size, size)

    def function(r, shortcut, *weights):
        feature = last_conv_norm(conv, norm, r)
        assert isinstance(feature, NormedConv)
        out = feature.plus(shortcut)
        return out, convolve(compress, feature)

    assert torch.autograd.gradcheck(function, (
        randn(3, 4, size, size), shortcut, conv.weight, norm.weight, norm.bias, compress.weight))


@pytest.mark.parametrize('size', [(8, 8), (9, 7)])
def test_max_pooling_equals_that_of_torch_to_the_bit(size):
    assert torch.autograd.gradcheck(lambda x: MaxPool.apply(x, 3, 2, 1, 1, False),
                                    randn(2, 3, *size))
    x = torch.randn(2, 3, *size).relu_().requires_grad_()  # zeros are ties
    x.data[0, 0, 3, 3] = float('nan')
    other = x.detach().clone().requires_grad_()
    out, expected = MaxPool.apply(x, 3, 2, 1, 1, False), F.max_pool2d(other, 3, 2, 1)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(x.grad, other.grad, rtol=0, atol=0)


def saved(net, image):
    """Return the bytes saved for backward."""
    return saved_for_backward(net, lambda: net(image))


@pytest.mark.parametrize('norm_eval, most', [(True, 0.8), (False, 1.06)])
@pytest.mark.parametrize('depth, base_channels', [(50, 64), (101, 32)])
def test_little_more_is_saved_for_backward_than_by_a_plain_resnet(depth, base_channels, norm_eval,
                                                                  most):
    image = torch.randn(1, 3, 320, 320)
    settings = dict(base_channels=base_channels, norm_eval=norm_eval)
    theirs = ResNet(depth, **settings)
    theirs.train()
    plain = saved(theirs, image)
    del theirs
    ours = RLAResNet(depth, **settings, rla=dict(channels=base_channels // 2))
    ours.train()
    assert saved(ours, image) < most * plain
    with plain_path():
        assert saved(ours, image) > 1.25 * plain


def test_statistics_are_updated_once_per_step(randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    net(torch.randn(2, 3, 64, 64))
    counts = {int(value) for name, value in net.named_buffers() if name.endswith('tracked')}
    assert counts == {1}


LAYERS = ('conv1', 'bn1', 'maxpool', 'relu', 'layer1.0.conv1', 'layer1.0.bn1', 'layer1.0.conv2',
          'layer1.0.bn2', 'layer1.0.conv3', 'layer1.0.bn3', 'layer1.0.relu',
          'layer1.0.downsample', 'layer1.0.downsample.0', 'layer1.0.downsample.1',
          'rla.0.norms.0', 'rla.0.compress', 'rla.0.recurrent', 'rla.0.readers.1')


@pytest.mark.parametrize('norm_eval', [False, True])
@pytest.mark.parametrize('training', [False, True])
def test_a_hook_on_any_layer_is_called_and_its_output_used(training, norm_eval, randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=norm_eval, rla=RLA)).train(training)
    image = torch.randn(2, 3, 64, 64)
    for name in LAYERS:
        with torch.set_grad_enabled(training):
            before = net(image)[0]
            handle = net.get_submodule(name).register_forward_hook(
                lambda module, inputs, out: out + 1)
            assert not torch.allclose(net(image)[0], before), f'the hook on {name} has no effect'
            handle.remove()


def test_a_backward_hook_is_called(randomise):
    net = randomise(RLAResNet(50, base_channels=4, rla=RLA)).train()
    called = []
    names = ('conv1', 'layer1.0.conv1', 'layer1.0.conv2', 'layer1.0.bn3', 'rla.0.recurrent',
             'rla.0.readers.1', 'rla.0.compress', 'rla.0.norms.0')
    for name in names:
        net.get_submodule(name).register_full_backward_hook(
            lambda *_, name=name: called.append(name))
    sum(out.sum() for out in net(torch.randn(2, 3, 64, 64))).backward()
    assert set(called) == set(names)


@pytest.mark.parametrize('pool', [nn.Identity(), nn.AvgPool2d(2)])
def test_another_pooling_of_the_stem_is_used(pool, randomise):
    net = randomise(RLAResNet(18, base_channels=4, rla=RLA)).eval()
    net.maxpool = pool
    image = torch.randn(2, 3, 32, 32)
    expected = pool(net.bn1(net.conv1(image)).relu())
    torch.testing.assert_close(net.forward_stem(image), expected)


def test_a_hook_on_the_pooling_gets_the_same_input_as_in_mmdet(randomise):
    net, seen = randomise(RLAResNet(18, base_channels=4, rla=RLA)).eval(), []
    net.maxpool.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    net(torch.randn(2, 3, 32, 32))
    assert seen[0].min() == 0, 'the input of the pooling is not the output of ReLU'


def test_a_single_value_of_a_channel_is_refused_as_by_torch():
    net = RLAResNet(18, base_channels=4, norm_eval=False, rla=RLA).train()
    with pytest.raises(ValueError, match='more than 1 value per channel'):
        net(torch.randn(1, 3, 32, 32))


def test_synchronised_norms_of_one_process_agree_with_plain_ones(randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    other = nn.SyncBatchNorm.convert_sync_batchnorm(
        RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    other.load_state_dict(net.state_dict())
    image = torch.randn(2, 3, 64, 64)
    for out, expected in zip(other(image), net(image), strict=True):
        torch.testing.assert_close(out, expected)


def test_half_precision_saves_as_little_and_trains(randomise, each_device):
    net, image = randomise(RLAResNet(50, base_channels=8)).train(), torch.randn(2, 3, 224, 224)
    with torch.autocast(each_device.type, torch.bfloat16):
        memory_saving = saved(net, image)
        with plain_path():
            assert memory_saving < 0.9 * saved(net, image)
        outs = net(image)
    sum(out.float().square().mean() for out in outs).backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32
               for p in net.parameters())


def test_without_a_hidden_path_inference_equals_mmdet_to_the_bit(randomise):
    ours, theirs = RLAResNet(50, base_channels=8, rla=None), ResNet(50, base_channels=8)
    theirs.load_state_dict(randomise(ours).state_dict())
    image = torch.randn(1, 3, 65, 97)
    ours.eval(), theirs.eval()
    with torch.no_grad():
        for out, expected in zip(ours(image), theirs(image), strict=True):
            assert torch.equal(out, expected)


def test_the_first_state_takes_no_memory():
    stage = RLAResNet(18, base_channels=4).rla[0]
    h, = stage.initial_state(torch.ones(2, 4, 8, 8))
    assert h.shape == (2, 32, 8, 8) and h.untyped_storage().nbytes() == 4
    assert F.conv2d(h, torch.ones(1, 32, 1, 1)).abs().max() == 0


def test_two_forward_passes_before_one_backward(randomise):
    # BYOL and siamese networks do this. 2**18 values per norm select the fast statistics.
    net = randomise(RLAResNet(18, base_channels=16, num_stages=1, strides=(1,), dilations=(1,),
                              out_indices=(0,), norm_eval=False, rla=RLA)).train()
    images = torch.randn(2, 2, 3, 384, 384)
    outs = [net(image)[0] for image in images]
    assert outs[0].numel() >= 2**18
    sum(out.square().mean() for out in outs).backward()
    together = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    for image in images:
        net(image)[0].square().mean().backward()
    for p, expected in zip(net.parameters(), together, strict=True):
        torch.testing.assert_close(p.grad, expected)


def test_without_exchange_as_little_is_saved_for_backward():
    net = RLAResNet(50, base_channels=16, rla=dict(exchange=False), out_hidden=True).train()
    image = torch.randn(1, 3, 224, 224)
    memory_saving = saved(net, image)
    with plain_path():
        assert memory_saving < 0.6 * saved(net, image)


@pytest.mark.parametrize('register', [
    nn.modules.module.register_module_forward_hook,
    nn.modules.module.register_module_forward_pre_hook,
    nn.modules.module.register_module_full_backward_hook,
    nn.modules.module.register_module_full_backward_pre_hook])
def test_hooks_for_all_modules_count_as_hooks(register):
    conv = nn.Conv2d(1, 1, 1)
    assert not has_hooks(conv)
    handle = register(lambda *_: None)
    try:
        assert has_hooks(conv)
    finally:
        handle.remove()
    assert not has_hooks(conv)


def test_a_forward_hook_for_all_modules_sees_every_layer(randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=True, rla=RLA)).train()
    called = set()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: called.add(module))
    try:
        net(torch.randn(2, 3, 64, 64))
    finally:
        handle.remove()
    missed = [name for name, module in net.named_modules()
              if module not in called and not isinstance(module, nn.ModuleList)]
    assert missed == []
