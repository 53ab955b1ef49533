"""RLAResNet: agreement with mmdet's ResNet, training, formats, errors."""
import pytest
import torch
from mmdet.models import ResNet, ResNeXt
from mmdet.registry import MODELS as MMDET_MODELS
from mmengine.registry import MODELS

from mmrla.models import RLAResNet, RLAResNeXt
from support.memory import saved_sizes

pytestmark = pytest.mark.usefixtures('each_device')

SMALL = dict(depth=18, base_channels=8)
PLUGINS = [
    dict(cfg=dict(type='ContextBlock', ratio=0.25), stages=(False, True, True, True),
         position='after_conv3'),
    dict(cfg=dict(type='NonLocal2d', postfix='_a'), position='after_conv2'),
    dict(cfg=dict(type='NonLocal2d', postfix='_b'), position='after_conv2'),
]
PLAIN = {
    '18': (18, {}),
    '34': (34, {}),
    '50': (50, {}),
    '101': (101, dict(base_channels=8)),
    '152': (152, dict(base_channels=8)),
    'caffe': (50, dict(style='caffe', frozen_stages=2, base_channels=8)),
    'deep stem': (50, dict(deep_stem=True, avg_down=True, stem_channels=32, base_channels=8)),
    'dilated': (50, dict(base_channels=8, strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2),
                         out_indices=(1, 3))),
    'three stages': (50, dict(base_channels=8, num_stages=3, strides=(1, 2, 2),
                              dilations=(1, 1, 1), out_indices=(2,))),
    'group norm': (50, dict(base_channels=8, norm_cfg=dict(type='GN', num_groups=4))),
    'weight standardisation': (50, dict(base_channels=8, conv_cfg=dict(type='ConvWS'))),
    'plugins': (50, dict(base_channels=8, plugins=PLUGINS)),
    'no zero init': (18, dict(base_channels=8, zero_init_residual=False)),
    'grey': (18, dict(base_channels=8, in_channels=1)),
    'deformable': (50, dict(base_channels=8, dcn=dict(type='DCNv2', deform_groups=1),
                            stage_with_dcn=(False, True, True, True))),
}


def assert_same_network(ours, theirs, image):
    """The same names, initial values and outputs, to the bit."""
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for (name, value), expected in zip(ours.state_dict().items(), theirs.state_dict().values(),
                                       strict=True):
        assert torch.equal(value, expected), f'{name} starts differently'
    assert ([p.requires_grad for p in ours.parameters()]
            == [p.requires_grad for p in theirs.parameters()])
    for training in (False, True):
        ours.train(training), theirs.train(training)
        for out, expected in zip(ours(image), theirs(image), strict=True):
            assert torch.equal(out, expected)


@pytest.mark.parametrize('case', PLAIN)
def test_without_rla_it_is_mmdets_resnet(case):
    depth, arguments = PLAIN[case]
    networks = []
    for build in (lambda **kw: RLAResNet(rla=None, **kw), ResNet):
        torch.manual_seed(0)
        net = build(depth=depth, **{**arguments, 'plugins': arguments.get('plugins')})
        net.init_weights()
        networks.append(net)
    assert_same_network(*networks, torch.randn(2, arguments.get('in_channels', 3), 65, 97))


@pytest.mark.parametrize('arguments', [
    dict(groups=32, base_width=4), dict(groups=8, base_width=8, base_channels=32), dict(groups=1)])
def test_without_rla_it_is_mmdets_resnext(arguments, randomise):
    ours, theirs = RLAResNeXt(depth=50, rla=None, **arguments), ResNeXt(depth=50, **arguments)
    theirs.load_state_dict(randomise(ours).state_dict())
    assert_same_network(ours, theirs, torch.randn(1, 3, 65, 97))


@pytest.mark.parametrize('registry', [MODELS, MMDET_MODELS])
def test_every_registry_finds_it_by_its_plain_name(registry):
    assert isinstance(registry.build(dict(type='RLAResNet', **SMALL)), RLAResNet)


def total(outs):
    return sum(out.double().square().mean() for out in outs)


@pytest.mark.parametrize('arguments', [
    dict(), dict(attention=dict(type='SE', ratio=4)), dict(attention=dict(type='ECA')),
    dict(rla=dict(variant='v6')), dict(depth=50), dict(frozen_stages=1), dict(with_cp=True)])
def test_every_parameter_that_trains_gets_a_gradient(arguments, randomise):
    net = randomise(RLAResNet(**{**SMALL, **arguments})).train()
    total(net(torch.randn(2, 3, 64, 64))).backward()
    without = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    # h^0 = 0, so the first reader's gradient is zero; no other on the path is.
    zero = [name for name, p in net.rla.named_parameters(prefix='rla')
            if p.requires_grad and p.grad.abs().max() == 0]
    assert zero == ([] if net.frozen_stages > 0 else ['rla.0.readers.0.weight'])


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 4])
def test_a_frozen_stage_freezes_its_part_of_the_hidden_path(frozen, randomise):
    net = randomise(RLAResNet(**SMALL, frozen_stages=frozen, norm_eval=False))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    parameters = [p for p in net.parameters() if p.requires_grad]
    outs = net(torch.randn(4, 3, 64, 64))
    if parameters:
        total(outs).backward()
        torch.optim.SGD(parameters, 1.0).step()
    changed = {name for name, value in net.state_dict().items()
               if not torch.equal(value, before[name])}
    frozen_prefixes = tuple(f'layer{i + 1}.' for i in range(frozen)) + tuple(
        f'rla.{i}.' for i in range(frozen)) + (('conv1.', 'bn1.') if frozen >= 0 else ())
    trainable = {name for name in before if not name.startswith(frozen_prefixes)}
    assert changed == trainable - {'rla.0.readers.0.weight'}


def test_norm_eval_does_not_change_the_statistics_of_both_paths(randomise):
    net = randomise(RLAResNet(**SMALL)).train()
    before = {name: value.clone() for name, value in net.state_dict().items() if 'running' in name}
    net(torch.randn(2, 3, 64, 64))
    assert any(name.startswith('rla.') for name in before)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize('rla', [None, dict(channels=8)])
def test_recomputed_activations_give_the_same_gradients(rla, randomise):
    image = torch.randn(2, 3, 65, 64)
    gradients = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        net = randomise(RLAResNet(**SMALL, rla=rla, with_cp=with_cp)).train()
        total(net(image)).backward()
        gradients.append([p.grad for p in net.parameters()])
    for recomputed, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, expected)


def test_recomputation_saves_less_for_backward():
    saved = []
    for with_cp in (False, True):
        net = RLAResNet(depth=50, base_channels=8, with_cp=with_cp).train()
        with saved_sizes() as sizes:
            net(torch.randn(1, 3, 64, 64))
        saved.append(sum(sizes))
    assert saved[1] < 0.5 * saved[0]


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_the_hidden_state_has_the_networks_dtype(dtype):
    net = RLAResNet(**SMALL, out_hidden=True).to(dtype).eval()
    outs = net(torch.randn(1, 3, 64, 64, dtype=dtype))
    assert {out.dtype for out in outs} == {dtype}


def test_autocast_trains_close_to_float32(randomise, each_device):
    net, image = randomise(RLAResNet(**SMALL)).train(), torch.randn(2, 3, 64, 64)
    exact = net(image)
    with torch.autocast(each_device.type, torch.bfloat16):
        outs = net(image)
        total(outs).backward()
    for out, expected in zip(outs, exact, strict=True):
        assert (out.float() - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_channels_last_stays_and_agrees(randomise):
    net, image = randomise(RLAResNet(**SMALL, out_hidden=True)).eval(), torch.randn(2, 3, 64, 96)
    expected = net(image)
    outs = net.to(memory_format=torch.channels_last)(
        image.contiguous(memory_format=torch.channels_last))
    for out, other in zip(outs, expected, strict=True):
        assert out.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(out, other, rtol=1e-4, atol=1e-4)


def test_the_meta_device_needs_no_memory():
    with torch.device('meta'):
        outs = RLAResNet(depth=152)(torch.randn(1, 3, 800, 1333))
    assert [out.device.type for out in outs] == ['meta'] * 4


@pytest.mark.parametrize('arguments, parts', [
    (dict(depth=51), ('depth=51', '18, 34, 50, 101, 152')),
    (dict(depth='50'), ("depth='50'", '50')),
    (dict(rla=dict(variant='v7')), ("'v7'", "'v1'", "'v6'")),
    (dict(rla=dict(variant=['v1'])), ("['v1']", "'v1'")),
    (dict(rla=dict(channels=0)), ('rla.channels=0', '1 or more')),
    (dict(rla=dict(channels=32.0)), ('rla.channels=32.0',)),
    (dict(rla=dict(channel=32)), ("'channel'", 'channels, variant, cell')),
    (dict(rla='v1'), ("rla='v1'", 'channels')),
    (dict(attention=dict(type='CBAN')), ("'CBAN'", "'SE'", "'ECA'")),
    (dict(attention='SE'), ("attention='SE'", 'dict(type=...)')),
    (dict(attention=dict(type='SE', ration=16)), ('ration',)),
    (dict(attention=dict(type='SE', ratio=100)), ('attention.ratio=100', '64')),
    (dict(attention=dict(type='ECA', kernel_size=4)), ('attention.kernel_size=4', 'odd')),
    (dict(out_indices=(0, 4)), ('4', '0, 1, 2, 3')),
    (dict(out_indices=()), ('out_indices=()',)),
    (dict(out_indices=3), ('out_indices=3', 'list or tuple')),
    (dict(strides=2), ('strides=2', 'list or tuple')),
    (dict(strides=(1, 2, 2, 0)), ('strides=0', '1 or more')),
    (dict(in_channels=0), ('in_channels=0',)),
    (dict(plugins=dict(position='after_conv1')), ('plugins=', 'list or tuple')),
    (dict(num_stages=5), ('num_stages=5', '1, 2, 3, 4')),
    (dict(strides=(1, 2)), ('strides=(1, 2)', 'num_stages=4')),
    (dict(style='tf'), ("style='tf'", "'pytorch', 'caffe'")),
    (dict(frozen_stages=5), ('frozen_stages=5',)),
    (dict(base_channels=0), ('base_channels=0',)),
    (dict(rla=None, out_hidden=True), ('out_hidden=True', 'rla=dict')),
    (dict(dcn=dict(type='DCN'), stage_with_dcn=(True,) * 4), ('dcn=', '50, 101 or 152')),
    (dict(depth=50, plugins=[dict(cfg=dict(type='ContextBlock'), position='after_conv4')]),
     ("'after_conv4'", "'after_conv3'")),
    (dict(pretrained='a.pth', init_cfg=dict(type='Pretrained', checkpoint='b.pth')),
     ('a.pth', 'b.pth')),
])
def test_a_wrong_value_is_named_with_the_choices(arguments, parts):
    with pytest.raises(ValueError) as error:
        RLAResNet(**{'depth': 18, **arguments})
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize('arguments, keeps', [
    (dict(frozen_stages=-1), False), (dict(frozen_stages=0), True), (dict(frozen_stages=1), True),
    (dict(norm_eval=True), True),
    (dict(frozen_stages=1, init_cfg=dict(type='Pretrained', checkpoint='a.pth')), False)])
def test_a_backbone_knows_that_it_would_keep_random_values(arguments, keeps):
    net = RLAResNet(**{**SMALL, 'norm_eval': False, **arguments})
    assert net.keeps_random_values() == keeps
    net.load_state_dict(RLAResNet(**SMALL).state_dict())
    assert not net.keeps_random_values(), 'weights were loaded'
