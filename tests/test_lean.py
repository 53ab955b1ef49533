"""The cheap forms of the hidden path compute what the plain ones do, and keep less."""
import pytest
import torch
import torch.nn.functional as F
from mmdet.models import ResNet
from torch import nn

from mmrla.models import (
    VARIANTS,
    RLACifarResNet,
    RLAMobileNetV2,
    RLAResNet,
    RLAResNeXt,
    RLAXception,
)
from mmrla.models.lean import (
    BatchNormStatistics,
    ConvTanhNorm,
    NormedConv,
    conv_norm,
    convolve,
    plain_path,
)

SMALL = dict(base_channels=4, norm_eval=False)
RLA = dict(channels=3)
NETWORKS = {
    **{f'{variant} {depth}': lambda variant=variant, depth=depth: RLAResNet(
        depth, **SMALL, rla=dict(RLA, variant=variant))
       for variant in VARIANTS for depth in (18, 50)},
    **{name: lambda arguments=arguments: RLAResNet(50, **{**SMALL, 'rla': RLA, **arguments})
       for name, arguments in {
           'ECA': dict(attention=dict(type='ECA')),
           'SE': dict(attention=dict(type='SE', ratio=4)),
           'caffe': dict(style='caffe', out_hidden=True),
           'stride 3': dict(strides=(1, 3, 1, 2), avg_down=True),
           'dilated': dict(strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)),
           'frozen': dict(frozen_stages=2),
           'group norm': dict(norm_cfg=dict(type='GN', num_groups=1)),
           'standardised weights': dict(conv_cfg=dict(type='ConvWS')),
           'plugin': dict(plugins=[dict(cfg=dict(type='ContextBlock', ratio=0.25),
                                        position='after_conv3')]),
           'unshared': dict(rla=dict(RLA, shared=False)),
           'no exchange': dict(rla=dict(RLA, exchange=False), out_hidden=True),
           'LSTM': dict(rla=dict(RLA, cell='lstm')),
           'GRU': dict(rla=dict(RLA, cell='gru')),
           'post-act': dict(rla=dict(RLA, pre_act=False)),
           'recomputed': dict(with_cp=True, norm_eval=True),
       }.items()},
    'ResNeXt': lambda: RLAResNeXt(depth=50, groups=2, base_width=4, **SMALL, rla=RLA),
    'MobileNetV2': lambda: RLAMobileNetV2(widen_factor=0.25, rla=RLA),
    'CIFAR': lambda: RLACifarResNet(29, bottleneck=True, base_channels=4, rla=RLA),
    'Xception': lambda: RLAXception(base_channels=2, num_middle=1, rla=RLA),
}


def results(net, image):
    """Outputs, gradients and, where they train, statistics."""
    net.zero_grad()
    outs = net(image)
    sum(out.sin().sum() for out in outs).backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    return {**{f'out {i}': out.detach() for i, out in enumerate(outs)}, **gradients, **buffers}


# Without the batch's statistics, standardised weights let values grow beyond measure.
@pytest.mark.parametrize('case, training', [
    (case, training) for case in NETWORKS for training in (True, False)
    if training or case != 'standardised weights'])
def test_cheap_and_plain_agree(case, training, randomise):
    net = randomise(NETWORKS[case]()).double().train(training)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    image = torch.randn(2, 3, 65, 72, dtype=torch.float64)
    cheap = results(net, image)
    with torch.no_grad():
        net.load_state_dict(state)
        inferred = net(image)
    net.load_state_dict(state)
    with plain_path():
        plain = results(net, image)
    assert set(cheap) == set(plain)
    for name, value in plain.items():
        torch.testing.assert_close(cheap[name], value, rtol=1e-9, atol=1e-9,
                                   msg=lambda text, name=name: f'{name}: {text}')
    for i, out in enumerate(inferred):
        torch.testing.assert_close(out, plain[f'out {i}'], rtol=1e-9, atol=1e-9)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_of_a_batch_norm_with_its_statistics():
    running = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def function(z, weight, bias):
        return BatchNormStatistics.apply(z, weight, bias, *running, 0.1, 1e-5)

    arguments = randn(2, 3, 4, 5), randn(3), randn(3)
    assert torch.autograd.gradcheck(function, arguments)
    # Each output by itself: the others then have no gradient.
    for i in range(3):
        assert torch.autograd.gradcheck(lambda *a, i=i: function(*a)[i], arguments)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('groups', [1, 4])
def test_gradcheck_of_the_recurrent_unit(training, groups, randomise):
    norm = randomise(nn.BatchNorm2d(4)).double().train(training)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups, bias=False).double()
    assert torch.autograd.gradcheck(
        lambda s, *weights: ConvTanhNorm.apply(s, *weights, norm, conv),
        (randn(2, 4, 5, 3), conv.weight, norm.weight, norm.bias))


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('size', [2, 3])  # W y from z, and from r
def test_gradcheck_of_compressing_a_residual(training, size, randomise):
    norm = randomise(nn.BatchNorm2d(8)).double().train(training)
    conv = nn.Conv2d(4, 8, 1, bias=False).double()
    compress = nn.Conv2d(8, 2, 1, bias=False).double()
    shortcut = randn(3, 8, size, size)

    def function(r, shortcut, *weights):
        feature = conv_norm(conv, norm, r)
        assert isinstance(feature, NormedConv)
        out = feature.add_(shortcut)
        return out, convolve(compress, feature)

    assert torch.autograd.gradcheck(function, (
        randn(3, 4, size, size), shortcut, conv.weight, norm.weight, norm.bias, compress.weight))


def kept(net, image):
    """Bytes that autograd keeps beside the network's own values."""
    own = {value.untyped_storage().data_ptr() for value in net.state_dict().values()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(image)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize('norm_eval', [True, False])
@pytest.mark.parametrize('depth', [50, 101])
def test_little_more_is_kept_for_backward_than_by_a_plain_resnet(depth, norm_eval):
    image = torch.randn(1, 3, 320, 320)
    theirs, ours = ResNet(depth, norm_eval=norm_eval), RLAResNet(depth, norm_eval=norm_eval)
    theirs.train(), ours.train()
    plain = kept(theirs, image)
    assert kept(ours, image) < 1.06 * plain
    with plain_path():
        assert kept(ours, image) > 1.25 * plain


def test_statistics_move_once_a_step(randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    net(torch.randn(2, 3, 64, 64))
    counts = {int(value) for name, value in net.named_buffers() if name.endswith('tracked')}
    assert counts == {1}


@pytest.mark.parametrize('training', [False, True])
def test_a_hook_on_any_layer_is_called_and_heeded(training, randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train(training)
    image = torch.randn(2, 3, 64, 64)
    for layer in (net.layer1[0].conv3, net.layer1[0].bn3, net.rla[0].norms[0],
                  net.rla[0].compress, net.rla[0].recurrent, net.rla[0].readers[1]):
        with torch.set_grad_enabled(training):
            before = net(image)[0]
            handle = layer.register_forward_hook(lambda module, inputs, out: 2 * out)
            assert not torch.allclose(net(image)[0], before), f'{layer} was not heeded'
            handle.remove()


def test_synchronised_norms_of_one_process_agree_with_plain_ones(randomise):
    net = randomise(RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    other = nn.SyncBatchNorm.convert_sync_batchnorm(
        RLAResNet(50, base_channels=4, norm_eval=False, rla=RLA)).train()
    other.load_state_dict(net.state_dict())
    image = torch.randn(2, 3, 64, 64)
    for out, expected in zip(other(image), net(image), strict=True):
        torch.testing.assert_close(out, expected)


def test_half_precision_keeps_as_little_and_trains(randomise):
    net, image = randomise(RLAResNet(50, base_channels=8)).train(), torch.randn(2, 3, 224, 224)
    with torch.autocast('cpu', torch.bfloat16):
        cheap = kept(net, image)
        with plain_path():
            assert cheap < 0.9 * kept(net, image)
        outs = net(image)
    sum(out.float().square().mean() for out in outs).backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32
               for p in net.parameters())


def test_without_a_hidden_path_inference_stays_mmdets_to_the_bit(randomise):
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
