"""The hidden path on any residual backbone: against RLAResNet, and as a mechanism."""
import copy
import pickle
import re
import sys
import threading

import pytest
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmrla.engine.distributed import destroy_process_group
from mmrla.models import VARIANTS, RLAResNet, RLAResNeXt, WithRLA
from mmrla.models.lean.fuse import fuse
from mmrla.models.with_rla import stages_of, table_of
from support import ONEDL, REPO
from support.memory import saved_sizes

pytestmark = pytest.mark.usefixtures('each_device')

R18 = dict(type='mmdet.ResNet', depth=18, base_channels=8)
R50 = dict(type='mmdet.ResNet', depth=50, base_channels=8)
NARROW = (16, 32, 64, 128)  # timm's ResNet
X50 = dict(type='mmdet.ResNeXt', depth=50, base_channels=16, groups=4, base_width=4)


def build(cfg):
    return MODELS.build(copy.deepcopy(cfg))


def total(outs):
    return sum(out.double().sin().sum() for out in outs)


def pair(cfg, rla, randomise, **arguments):
    """WithRLA of a plain network, and the specialised class, with the same weights."""
    cfg = {**cfg, **arguments.pop('backbone', {})}
    settings = {key: value for key, value in cfg.items() if key != 'type'}
    cls = RLAResNeXt if 'groups' in cfg else RLAResNet
    special = randomise(cls(**settings, rla=rla, **arguments)).double()
    wrapped = build(dict(type='WithRLA', backbone=cfg, rla=rla, **arguments)).double()
    wrapped.load_state_dict(special.state_dict(), strict=True)
    return wrapped, special


def outputs_and_gradients(net, image):
    image = image.clone().requires_grad_()
    outs = net(image)
    parameters = dict(sorted(net.named_parameters()))
    gradients = torch.autograd.grad(
        total(outs), [image, *(p for p in parameters.values() if p.requires_grad)])
    return [*outs, *gradients]


def assert_equal(ours, expected):
    """Compare relative to the largest value, because a gradient is a sum of terms of its size."""
    scale = max(1., expected.abs().max().item())
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9 * scale)


def assert_equal_networks(wrapped, special, image):
    assert set(wrapped.state_dict()) == set(special.state_dict())
    for ours, expected in zip(outputs_and_gradients(wrapped, image),
                              outputs_and_gradients(special, image), strict=True):
        assert_equal(ours, expected)
    buffers = dict(special.named_buffers())
    for name, value in wrapped.named_buffers():  # what the norms learnt
        assert_equal(value, buffers[name])


@pytest.mark.parametrize('shared', [True, False])
@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('cfg', [R18, R50, X50], ids=['r18', 'r50', 'x50'])
def test_it_computes_what_the_specialised_class_computes(cfg, variant, shared, randomise):
    rla = dict(channels=3, variant=variant, shared=shared)
    pairs = pair(cfg, rla, randomise, backbone=dict(norm_eval=False))
    image = torch.randn(2, 3, 65, 71, dtype=torch.float64)
    for training in (False, True):
        for net in pairs:
            net.train(training)
        assert_equal_networks(*pairs, image)


@pytest.mark.parametrize('rla', [
    dict(exchange=False), dict(cell='lstm'), dict(cell='gru'), dict(pre_act=False)])
@pytest.mark.parametrize('cfg', [R18, R50], ids=['r18', 'r50'])
def test_the_ablations_agree_with_the_hidden_state_returned(cfg, rla, randomise):
    pairs = pair(cfg, dict(channels=3, **rla), randomise, out_hidden=True,
                 backbone=dict(norm_eval=False))
    for net in pairs:
        net.train()
    assert_equal_networks(*pairs, torch.randn(2, 3, 64, 97, dtype=torch.float64))


@pytest.mark.parametrize('backbone', [
    dict(style='caffe'), dict(deep_stem=True, avg_down=True),
    dict(strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2)), dict(strides=(1, 1, 2, 2)),
    dict(num_stages=3, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(0, 2)),
    dict(frozen_stages=2), dict(norm_eval=True)])
@pytest.mark.parametrize('new_parts', [(), ('rla',)], ids=['loaded', 'new'])
def test_the_settings_of_the_network_mean_the_same(backbone, new_parts, randomise):
    wrapped, special = pair(R50, dict(channels=3), randomise, backbone=backbone)
    for net in (wrapped, special):
        net.set_new_parts(new_parts)
        net.train()
    assert ({name: p.requires_grad for name, p in wrapped.named_parameters()}
            == {name: p.requires_grad for name, p in special.named_parameters()})
    assert ({name: module.training for name, module in wrapped.rla.named_modules()}
            == {name: module.training for name, module in special.rla.named_modules()})
    assert_equal_networks(wrapped, special, torch.randn(2, 3, 65, 64, dtype=torch.float64))


@pytest.mark.parametrize('size', [(33, 47), (34, 50), (65, 97), (225, 63)])
def test_every_size(size, randomise):
    wrapped, special = pair(R18, dict(channels=3), randomise, out_hidden=True)
    wrapped.eval(), special.eval()
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    for ours, expected in zip(wrapped(image), special(image), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_until_training_the_outputs_are_the_plain_networks_to_the_bit():
    plain = build(R50)
    plain.init_weights()
    net = build(dict(type='WithRLA', backbone=R50))
    net.init_weights()
    net.load_state_dict(plain.state_dict(), strict=False)
    image = torch.randn(2, 3, 65, 97)
    for mode in (False, True):
        plain.train(mode), net.train(mode)
        for ours, expected in zip(net(image), plain(image), strict=True):
            assert torch.equal(ours, expected)
    assert all(reader.weight.abs().max() == 0 for reader in net.readers())
    assert all(stage.compress.weight.std() > 0.01 for stage in net.rla)


def test_the_rest_of_a_seed_is_not_changed_by_the_dry_run():
    torch.manual_seed(3)
    plain = build(R18)
    torch.manual_seed(3)
    net = build(dict(type='WithRLA', backbone=R18))
    for name, value in plain.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), f'{name} starts differently'


def test_after_one_step_every_new_parameter_has_a_gradient():
    cfg = {**R18, 'norm_eval': False, 'zero_init_residual': False}
    net = build(dict(type='WithRLA', backbone=cfg, rla=dict(channels=4)))
    net.init_weights()
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        total(net(torch.randn(2, 3, 64, 64))).backward()
        optimizer.step()
    without = [name for name, p in net.named_parameters() if p.grad is None]
    assert without == []
    zero = [name for name, p in net.rla.named_parameters() if p.grad.abs().max() == 0]
    assert zero == ['0.readers.0.weight']  # h is zero before the first block


@pytest.fixture
def net(randomise):
    """A network whose hidden path matters."""
    return randomise(build(dict(
        type='WithRLA', backbone={**R18, 'norm_eval': False}, rla=dict(channels=4)))).eval()


@pytest.fixture
def image():
    return torch.randn(2, 3, 65, 64)


def test_no_state_is_left_between_calls(net, image):
    first = net(image)
    assert net._pass.state is None and not net._pass.running
    assert net._pass.term is None and net._pass.new is None and net._pass.step is None
    with pytest.raises(RuntimeError):
        net(torch.randn(1, 4, 64, 64))
    assert net._pass.state is None and not net._pass.running
    for ours, expected in zip(net(image), first, strict=True):
        assert torch.equal(ours, expected)


def test_a_block_called_by_itself_is_the_plain_block(net):
    plain = build(R18)
    plain.load_state_dict(net.state_dict(), strict=False)
    plain.eval()
    x = torch.randn(1, 8, 16, 16)
    assert torch.equal(net.layer1[0](x), plain.layer1[0](x))


@pytest.mark.parametrize('copied', [
    copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=['deepcopy', 'pickle'])
def test_a_copy_is_independent(net, image, copied):
    expected = net(image)
    other = copied(net)
    assert type(other) is type(net) and isinstance(other, WithRLA)
    for ours, theirs in zip(other(image), expected, strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        for parameter in other.rla.parameters():
            parameter.zero_()
    assert not torch.equal(other(image)[-1], expected[-1])
    assert torch.equal(net(image)[-1], expected[-1])


def test_several_instances_and_threads_do_not_mix(net, randomise, image):
    other = randomise(build(dict(type='WithRLA', backbone=R18, rla=dict(channels=2)))).eval()
    expected = {network: network(image)[-1] for network in (net, other)}
    results = []

    def run(network):
        for _ in range(5):
            with torch.no_grad():
                results.append(torch.equal(network(image)[-1], expected[network]))

    threads = [threading.Thread(target=run, args=(network,)) for network in (net, other, net)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 15


def timm_network(recomputed, **kwargs):
    pytest.importorskip('timm')
    plain = build(dict(type='mmpretrain.TIMMBackbone', **kwargs))
    plain.timm_model.set_grad_checkpointing(recomputed)
    return plain


def network_with_cp(recomputed, **kwargs):
    return build(dict(kwargs, with_cp=recomputed))


@pytest.mark.parametrize('make, kwargs', [
    (network_with_cp, R50),
    (network_with_cp, dict(type='mmpretrain.ConvNeXt', arch='atto', out_indices=(0, 1, 2, 3))),
    (timm_network, dict(model_name='resnet18', channels=NARROW, features_only=True)),
    (timm_network, dict(model_name='resnet18', channels=NARROW)),
    (timm_network, dict(model_name='convnext_atto'))],
    ids=['r50', 'convnext', 'timm stages', 'timm resnet', 'timm convnext'])
def test_recomputed_activations_give_the_same_gradients(make, kwargs, randomise):
    image, results, kept = torch.randn(2, 3, 65, 64, dtype=torch.float64), [], []
    for recomputed in (False, True):
        torch.manual_seed(0)
        net = WithRLA(make(recomputed, **kwargs), rla=dict(channels=4))
        net = randomise(net).train().double()
        assert {step.recompute for step in net._steps} == {recomputed}
        with saved_sizes() as sizes:
            net(image)
        kept.append(sum(sizes))
        results.append(outputs_and_gradients(net, image))
    for ours, stored in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, stored, rtol=1e-9, atol=1e-9)
    assert kept[1] < 0.6 * kept[0]


def test_checkpointing_of_a_built_network_is_taken_over_by_train(randomise, image):
    net = randomise(WithRLA(timm_network(False, model_name='resnet18'), rla=dict(channels=4)))
    expected = outputs_and_gradients(net.train(), image)
    net.timm_model.set_grad_checkpointing()
    with pytest.raises(RuntimeError, match=r'recomputed .* set_grad_checkpointing'):
        outputs_and_gradients(net, image)
    for ours, theirs in zip(outputs_and_gradients(net.train(), image), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_whole_backbone_may_be_recomputed_but_no_part_of_it(net, image):
    expected = outputs_and_gradients(net, image)
    recomputed = outputs_and_gradients(
        Around(net, lambda x: checkpoint(net, x, use_reentrant=False)), image)
    for ours, theirs in zip(recomputed, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    plain = net.layer2.forward
    net.layer2.forward = lambda x: checkpoint(plain, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match='layer2.0 is recomputed .* set with_cp'):
        outputs_and_gradients(net, image)


class Around(nn.Module):
    def __init__(self, net, function):
        super().__init__()
        self.net, self.function = net, function

    def forward(self, x):
        return self.function(x)


def test_what_a_users_hook_holds_is_not_changed(net, image):
    expected, held, conv = net(image), [], net.layer2[1].conv1
    hook = conv.register_forward_hook(  # as if it were there before WithRLA
        lambda module, args, out: held.append((args[0], out)), prepend=True)
    outs = net(image)
    hook.remove()
    (x, out), = held
    assert torch.equal(out, conv(x))
    assert all(map(torch.equal, outs, expected))


def test_replaced_norms_still_show_y(image, randomise):
    cfg = {**R18, 'norm_cfg': dict(type='SyncBN', requires_grad=True)}
    net = build(dict(type='WithRLA', backbone=cfg, norm_cfg=dict(type='SyncBN')))
    net = randomise(revert_sync_batchnorm(net)).eval()
    same = build(dict(type='WithRLA', backbone=R18))
    same.load_state_dict(net.state_dict())
    same.eval()
    for ours, expected in zip(net(image), same(image), strict=True):
        assert torch.equal(ours, expected)


def test_a_bypassed_part_is_an_error_not_another_result(net, image, monkeypatch):
    monkeypatch.setattr(type(net.layer1[1]), 'forward', lambda block, x: x)
    with pytest.raises(RuntimeError, match=r'layer1\.0 ran without calling its conv1'):
        net(image)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_the_hidden_state_has_the_networks_dtype(dtype):
    net = build(dict(type='WithRLA', backbone=R18, out_hidden=True)).to(dtype).eval()
    outs = net(torch.randn(1, 3, 64, 64, dtype=dtype))
    assert {out.dtype for out in outs} == {dtype}


def test_the_meta_device_needs_no_memory():
    with torch.device('meta'):
        net = build(dict(type='WithRLA', backbone=dict(type='mmdet.ResNet', depth=152)))
        outs = net(torch.randn(1, 3, 800, 1333))
    assert [out.device.type for out in outs] == ['meta'] * 4


def test_a_network_may_be_given_itself_and_is_plain_after_an_error():
    plain = build(R18)
    with pytest.raises(ValueError, match="'v7'"):
        WithRLA(plain, rla=dict(variant='v7'))
    assert type(plain).__name__ == 'ResNet' and not hasattr(plain, 'rla')
    assert WithRLA(plain) is plain and isinstance(plain, WithRLA)
    with pytest.raises(ValueError, match='has an attribute "rla"'):
        WithRLA(plain)


@pytest.mark.parametrize('arguments, parts', [
    (dict(backbone=3), ('backbone=3',)),
    (dict(rla=dict(channel=3)), ("'channel'", 'channels, variant')),
    (dict(rla=dict(exchange=False)), ('rla.exchange=False', 'out_hidden')),
    (dict(backbone=dict(type='RLAResNet', depth=18, base_channels=8)), ('RLAResNet', 'rla=dict')),
    (dict(backbone=nn.Sequential(nn.Conv2d(3, 3, 1))), ('Sequential', 'give a module')),
    (dict(blocks=[dict(block=r'layer\d\.\d', entry='conv2')]),
     ('layer2.0', '(16, 16)', '(8, 8)', 'model.backbone.blocks')),
    (dict(input_shape=(4, 64, 64)), ('ResNet', '(4, 64, 64)', 'input_shape')),
])
def test_a_wrong_value_is_named_with_the_fix(arguments, parts):
    with pytest.raises(ValueError) as error:
        WithRLA(**{'backbone': copy.deepcopy(R18), **arguments})
    for part in parts:
        assert part in str(error.value)


SMALL = {
    'r18': R18,
    'r50': R50,
    'regnet': dict(type='mmdet.RegNet', arch='regnetx_400mf'),
    'cspnext': dict(type='mmdet.CSPNeXt', deepen_factor=0.33, widen_factor=0.25),
    'mobilenet': dict(type='mmdet.MobileNetV2', widen_factor=0.25),
    'convnext': dict(type='mmpretrain.ConvNeXt', arch='atto', out_indices=(0, 1, 2, 3)),
    'timm': dict(type='mmpretrain.TIMMBackbone', model_name='resnetv2_50', features_only=True,
                 stem_chs=16, channels=(64, 128, 256, 512)),
}


def small(name, randomise):
    if name == 'timm':
        pytest.importorskip('timm')
    return randomise(build(dict(type='WithRLA', backbone=SMALL[name], rla=dict(channels=4)))).eval()


@pytest.mark.parametrize('name', ['r18', 'regnet', 'cspnext', 'mobilenet', 'convnext'])
def test_autocast_trains_and_is_close_to_float32(name, randomise, image, each_device):
    net = small(name, randomise)
    exact = net(image)
    with torch.autocast(each_device.type, torch.bfloat16):
        outs = net(image)
        total(net.train()(image)).backward()
    for out, expected in zip(outs, exact, strict=True):
        assert (out.float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(p.grad.isfinite().all() for p in net.rla.parameters())


@pytest.mark.parametrize('name', ['r18', 'regnet', 'cspnext', 'mobilenet'])
def test_channels_last_stays_and_agrees(name, randomise, image):
    net = small(name, randomise)
    expected = net(image)
    outs = net.to(memory_format=torch.channels_last)(
        image.contiguous(memory_format=torch.channels_last))
    for out, other in zip(outs, expected, strict=True):
        assert out.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(out, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', SMALL)
def test_a_fused_network_computes_the_same(name, randomise, image):
    net = small(name, randomise).double()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    expected = net(image.double())
    fused = fuse(copy.deepcopy(net))
    left = sum(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert left < norms or name in ('convnext', 'timm')
    for ours, other in zip(fused(image.double()), expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-9)


NAMED = {
    'first': (R18, dict(block=r'layer\d\.\d', entry='conv1'), 'bn1'),
    'second': (R50, dict(block=r'layer\d\.\d', entry='conv2'), 'bn2'),
    'last': (R50, dict(block=r'layer1\.\d', entry='conv3'), 'bn3'),
    'depthwise': (SMALL['cspnext'], dict(block=r'stage3\.1\.blocks\.\d',
                                        entry='conv2.depthwise_conv.conv'),
                  'conv2.depthwise_conv.bn'),
}


@pytest.mark.parametrize('name', NAMED)
def test_a_network_is_fused_at_the_entries_that_the_config_names(name, randomise, image):
    cfg, names, norm = NAMED[name]
    net = randomise(build(dict(type='WithRLA', backbone=cfg, rla=dict(channels=4),
                               blocks=[names]))).eval().double()
    image, expected = image.double(), net(image.double())
    fused = fuse(copy.deepcopy(net))
    assert {step.block.norm for step in net._steps} == {norm}
    assert {type(step.module.get_submodule(norm)) for step in fused._steps} == {nn.Identity}
    for ours, other in zip(fused(image), expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        for reader in fused.readers():
            reader.weight.zero_()
    assert not torch.allclose(fused(image)[-1], expected[-1])  # h is a part of the comparison


def test_a_norm_that_takes_a_copy_of_the_entrys_output_is_fused_with_it(randomise):
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return x + self.norm(self.conv(x).clone())

    blocks = nn.Sequential(Copying(), Copying())
    net = WithRLA(Around(blocks, blocks), rla=dict(channels=2))
    net, image = randomise(net).eval().double(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(fuse(copy.deepcopy(net))(image), net(image), rtol=1e-9, atol=1e-9)


# Two stages are enough, and a compilation takes seconds.
COMPILED = {
    'r18': R18,
    'resnext': {**X50, **dict(num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(0, 1))},
    'regnet': dict(type='mmdet.RegNet', strides=(2, 2), dilations=(1, 1), out_indices=(0, 1),
                   arch=dict(w0=16, wa=16.0, wm=2.5, group_w=8, depth=3, bot_mul=1.0)),
    'cspnext': SMALL['cspnext'],
    'convnext': dict(type='mmpretrain.ConvNeXt', arch=dict(depths=[2, 2], channels=[8, 16]),
                     out_indices=(0, 1)),
}


@pytest.mark.parametrize('name', COMPILED)
def test_compile_has_no_graph_break(name, randomise, image):
    if name == 'cspnext' and sys.version_info >= (3, 13) and not ONEDL:
        pytest.skip("torch.compile cannot trace mmdet's plain CSPNeXt with Python 3.13")
    net = randomise(build(dict(type='WithRLA', backbone=COMPILED[name], rla=dict(channels=4))))
    net.train()
    expected = copy.deepcopy(net)(image)
    outs = torch.compile(net, backend='aot_eager', fullgraph=True)(image)
    for ours, other in zip(outs, expected, strict=True):
        torch.testing.assert_close(ours, other)
    total(outs).backward()
    assert all(p.grad is not None for p in net.rla.parameters())
    assert net._pass.state is None and not net._pass.running


@pytest.mark.parametrize('name', ['r18', 'convnext'])
def test_torch_export_takes_other_batches_and_sizes(name, randomise):
    net = small(name, randomise)
    image = torch.randn(2, 3, 64, 96)
    dims = {0: torch.export.Dim('n', max=8), 3: 32 * torch.export.Dim('w', min=2, max=8)}
    program = torch.export.export(net, (image,), dynamic_shapes=(dims,))
    other = torch.randn(3, 3, 64, 128)
    for ours, expected in zip(program.module()(other), net(other), strict=True):
        torch.testing.assert_close(ours, expected)


def test_onnx_computes_the_same(tmp_path, randomise):
    onnxruntime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    net, image = small('r18', randomise), torch.randn(1, 3, 65, 64)
    path = tmp_path / 'net.onnx'
    torch.onnx.export(net, (image,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    outs = session.run(None, {session.get_inputs()[0].name: image.cpu().numpy()})
    for ours, expected in zip(outs, net(image), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), expected, rtol=1e-3, atol=1e-4)


def test_a_classifier_trains_with_it():
    """The neck for classifiers reads the hidden state, as it does for RLAResNet."""
    classifier = build(dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='WithRLA', backbone={**R18, 'out_indices': (3,)},
                      rla=dict(channels=4), out_hidden=True),
        neck=dict(type='RLAPooling', channels=4),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=64 + 4)))
    optimizer = torch.optim.SGD(classifier.parameters(), 0.01)
    from mmpretrain.structures import DataSample
    samples = [DataSample().set_gt_label(label) for label in (0, 2)]
    for _ in range(2):
        loss = classifier(torch.randn(2, 3, 64, 64), samples, mode='loss')['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite() and all(p.grad is not None for p in classifier.parameters())


@pytest.mark.parametrize('variant', ['v1', 'v4', 'v5'])
def test_ddp_finds_no_unused_parameter(variant, image):
    net = build(dict(type='WithRLA', backbone=R18, rla=dict(channels=4, variant=variant))).train()

    def train():
        model = nn.parallel.DistributedDataParallel(net)
        for _ in range(3):  # it stops in the second iteration if one was unused
            total(model(image)).backward()

    torch.distributed.init_process_group(
        'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        train()
    finally:
        destroy_process_group()


def test_the_examples_of_the_docs_run():
    text = (REPO / 'docs/add_rla_to_your_network.md').read_text()
    scope = {}
    for code in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
        exec(code, scope)
    outs = scope['outs']
    assert [tuple(out.shape) for out in outs] == [
        (2, 32, 24, 32), (2, 64, 12, 16), (2, 128, 6, 8)]
    assert table_of(stages_of([step.block for step in scope['backbone']._steps])) in (
        text.replace('    stage  blocks', 'stage  blocks').replace('\n    ', '\n'))
