"""Hooks on stages and blocks, as CAM and distillation code registers them."""
import pytest
import torch
from mmdet.models import ResNet
from torch import nn

from mmrla.models import RLACifarResNet, RLAMobileNetV2, RLAResNet, RLAXception
from mmrla.models.backbones.blocks import RLABlock
from mmrla.models.lean.fuse import fuse

RLA = dict(channels=4)
NETWORKS = {
    'resnet18': (lambda rla: RLAResNet(18, base_channels=8, rla=rla),
                 ['layer1', 'layer2', 'layer3', 'layer4', 'layer1.0', 'layer4.1']),
    'resnet50': (lambda rla: RLAResNet(50, base_channels=8, rla=rla),
                 ['layer1', 'layer4', 'layer1.0', 'layer4.2']),
    'mobilenet': (lambda rla: RLAMobileNetV2(widen_factor=0.25, rla=rla),
                  ['layer1', 'layer7', 'conv2', 'layer2.0', 'layer7.0.linear_conv']),
    'cifar': (lambda rla: RLACifarResNet(20, base_channels=4, rla=rla),
              ['stages.0', 'stages.2', 'stages.0.0', 'stages.2.2']),
    'xception': (lambda rla: RLAXception(base_channels=2, num_middle=2, rla=rla),
                 ['groups.0', 'groups.5', 'groups.3.1', 'groups.5.0']),
}
CASES = [(network, rla, name) for network, (_, names) in NETWORKS.items()
         for rla in (None, RLA) for name in names]


def build(network, rla, randomise):
    torch.manual_seed(0)
    return randomise(NETWORKS[network][0](rla)).eval()


@pytest.mark.parametrize('network, rla, name', CASES)
def test_a_forward_hook_gets_a_tensor_once(network, rla, name, randomise):
    net, seen = build(network, rla, randomise), []
    net.get_submodule(name).register_forward_hook(
        lambda module, inputs, out: seen.append((inputs, out)))
    net(torch.randn(1, 3, 64, 64))
    (inputs, out), = seen
    assert isinstance(out, torch.Tensor)
    assert [type(value) for value in inputs] == [torch.Tensor]


@pytest.mark.parametrize('rla', [None, RLA])
@pytest.mark.parametrize('fused', [False, True])
def test_the_output_of_a_stage_is_that_of_the_network(rla, fused, randomise):
    net, seen = build('resnet50', rla, randomise), {}
    net = fuse(net) if fused else net
    for name in net.res_layers:
        getattr(net, name).register_forward_hook(
            lambda module, inputs, out, name=name: seen.update({name: out}))
        getattr(net, name)[-1].register_forward_hook(
            lambda module, inputs, out, name=name: seen.update({name + ' last': out}))
    with torch.no_grad():
        outs = net(torch.randn(1, 3, 64, 64))
    for name, out in zip(net.res_layers, outs, strict=True):
        assert torch.equal(seen[name], out)
        assert torch.equal(seen[name + ' last'], out)


@pytest.mark.parametrize('network, rla, name', CASES)
def test_a_forward_hook_replaces_the_output(network, rla, name, randomise):
    net, image = build(network, rla, randomise), torch.randn(1, 3, 64, 64)
    before = net(image)[-1]
    net.get_submodule(name).register_forward_hook(lambda module, inputs, out: out * 2 + 1)
    assert not torch.allclose(net(image)[-1], before)


@pytest.mark.parametrize('network, rla, name', CASES)
def test_a_forward_pre_hook_replaces_the_input(network, rla, name, randomise):
    net, image, calls = build(network, rla, randomise), torch.randn(1, 3, 64, 64), []
    before = net(image)
    handle = net.get_submodule(name).register_forward_pre_hook(
        lambda module, inputs: calls.append(1) or inputs[0].clone())
    for out, expected in zip(net(image), before, strict=True):
        torch.testing.assert_close(out, expected)  # the hidden path is still there
    handle.remove()
    net.get_submodule(name).register_forward_pre_hook(lambda module, inputs: inputs[0] + 1)
    assert calls == [1] and not torch.allclose(net(image)[-1], before[-1])


@pytest.mark.parametrize('network, rla, name', CASES)
def test_a_backward_hook_gets_the_gradient_of_the_output(network, rla, name, randomise):
    net, seen = build(network, rla, randomise).train(), []
    module, outs = net.get_submodule(name), []
    module.register_full_backward_hook(lambda module, grads, outs: seen.append(outs))
    module.register_forward_hook(lambda module, inputs, out: outs.append(out))
    sum(out.square().mean() for out in net(torch.randn(2, 3, 64, 64))).backward()
    (gradient,), = seen
    assert gradient.shape == outs[0].shape and gradient.abs().max() > 0


@pytest.mark.parametrize('variant', ['v1', 'v3'])
def test_the_hidden_path_reads_the_output_that_a_hook_returns(variant, randomise):
    net = randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4, variant=variant),
                              out_hidden=True)).eval()
    image = torch.randn(1, 3, 64, 64)
    before = net(image)[-1]
    net.layer4[-1].register_forward_hook(lambda module, inputs, out: out * 2 + 1)
    # v1 compresses the residual of the block, v3 its output.
    assert torch.allclose(net(image)[-1], before) == (variant == 'v1')


@pytest.mark.parametrize('rla', [None, RLA])
def test_hooks_with_activation_checkpointing(rla, randomise):
    gradients = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        net = randomise(RLAResNet(18, base_channels=8, rla=rla, with_cp=with_cp)).train()
        seen = []
        net.layer2.register_forward_hook(lambda module, inputs, out, seen=seen: seen.append(out))
        net.layer3[0].register_forward_hook(lambda module, inputs, out: out * 2)
        sum(out.square().mean() for out in net(torch.randn(2, 3, 64, 64))).backward()
        assert len(seen) == 1 and seen[0].shape == (2, 16, 8, 8)
        gradients.append([p.grad for p in net.parameters()])
    for recomputed, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, expected)


def test_hooks_see_the_same_tensors_as_in_mmdet(randomise):
    ours, theirs = RLAResNet(50, base_channels=8, rla=None), ResNet(50, base_channels=8)
    theirs.load_state_dict(randomise(ours).state_dict())
    image, seen = torch.randn(1, 3, 64, 64), []
    for net in (ours, theirs):
        net.eval()
        outs = {}
        for name, module in net.named_modules():
            module.register_forward_hook(
                lambda module, inputs, out, name=name, outs=outs: outs.update(
                    {name: out.clone()} if name else {}))  # later layers work in place
        net(image)
        seen.append(outs)
    assert set(seen[0]) == set(seen[1])
    for name, out in seen[1].items():
        assert torch.equal(seen[0][name], out), name


def test_a_stage_and_a_block_run_without_the_hidden_path(randomise):
    net, plain = (randomise(RLAResNet(18, base_channels=8, rla=rla)).eval() for rla in (RLA, None))
    plain.load_state_dict({name: value for name, value in net.state_dict().items()
                           if not name.startswith('rla.')})
    x = torch.randn(1, 8, 16, 16)
    torch.testing.assert_close(net.layer1(x), plain.layer1(x))
    torch.testing.assert_close(nn.Sequential(*net.layer1)(x), plain.layer1(x))


@pytest.mark.parametrize('network', NETWORKS)
def test_every_block_names_its_joint(network):
    net = NETWORKS[network][0](RLA)
    blocks = [module for module in net.modules() if isinstance(module, RLABlock)]
    joints = list(net.joints())
    assert len(joints) == len(blocks) + (network == 'mobilenet')
    assert len(net.readers()) == len(joints)
    for conv, _, reader in joints:
        assert conv.out_channels == reader.out_channels
