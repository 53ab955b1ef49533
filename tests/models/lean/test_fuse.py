"""The fused form for inference, torch.compile, torch.export and ONNX."""
import copy

import pytest
import torch
from mmdet.models import FPN, ResNet
from mmdet.registry import MODELS as DETECTORS
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from mmrla.commands.measurements import multiply_adds
from mmrla.models import (
    VARIANTS,
    RLACifarResNet,
    RLAMobileNetV2,
    RLAResNet,
    RLAResNeXt,
    RLAXception,
)
from mmrla.models.lean.conditions import plain_path
from mmrla.models.lean.fuse import fuse
from support import REPO

pytestmark = pytest.mark.usefixtures('each_device')

SMALL = dict(base_channels=8, rla=dict(channels=4))
NETWORKS = {
    **{f'{variant} {depth}': lambda variant=variant, depth=depth: RLAResNet(
        depth, base_channels=8, rla=dict(channels=4, variant=variant), out_hidden=True)
       for variant in VARIANTS for depth in (18, 50)},
    **{name: lambda arguments=arguments: RLAResNet(50, **{**SMALL, **arguments})
       for name, arguments in {
           'plain': dict(rla=None),
           'ECA': dict(attention=dict(type='ECA')),
           'SE': dict(attention=dict(type='SE', ratio=4)),
           'caffe': dict(style='caffe'),
           'deep stem': dict(deep_stem=True, avg_down=True),
           'deformable': dict(dcn=dict(type='DCNv2', deform_groups=1),
                              stage_with_dcn=(False, True, True, True)),
           'group norm': dict(norm_cfg=dict(type='GN', num_groups=4)),
           'plugin': dict(plugins=[dict(cfg=dict(type='ContextBlock', ratio=0.25),
                                        position='after_conv3')]),
           'unshared': dict(rla=dict(channels=4, shared=False)),
           'no exchange': dict(rla=dict(channels=4, exchange=False), out_hidden=True),
           'LSTM': dict(rla=dict(channels=4, cell='lstm')),
           'GRU': dict(rla=dict(channels=4, cell='gru')),
           'post-act': dict(rla=dict(channels=4, pre_act=False)),
       }.items()},
    'ResNeXt': lambda: RLAResNeXt(depth=50, groups=4, base_width=4, **SMALL),
    'MobileNetV2': lambda: RLAMobileNetV2(widen_factor=0.25, rla=dict(channels=4)),
    'CIFAR': lambda: RLACifarResNet(29, bottleneck=True, rla=dict(channels=4), out_hidden=True),
    'Xception': lambda: RLAXception(base_channels=4, num_middle=1, rla=dict(channels=4)),
}


def norms(module):
    return sum(isinstance(m, nn.BatchNorm2d) for m in module.modules())


def assert_close(outs, expected, tolerance=1e-4):
    """Equal up to ``tolerance`` times the largest value of each output."""
    for i, (out, other) in enumerate(zip(outs, expected, strict=True)):
        out, other = (torch.as_tensor(value).detach() for value in (out, other))
        error = (out - other).abs().max() / other.abs().max()
        assert error < tolerance, f'output {i} is off by {error:.1e} of its largest value'


@torch.no_grad()
@pytest.mark.parametrize('case', NETWORKS)
def test_a_fused_network_gives_the_same_outputs(case, randomise):
    net, image = randomise(NETWORKS[case]()).eval(), torch.randn(2, 3, 65, 72)
    expected = net(image)
    fused = fuse(copy.deepcopy(net))
    assert_close(fused(image), expected)
    if case != 'group norm':
        assert norms(fused) < norms(net)
    assert_close(fuse(fused)(image), expected)  # fusing again changes nothing


def test_all_norms_after_a_convolution_are_folded():
    net = fuse(RLAResNet(50, **SMALL))
    assert norms(net) == norms(net.rla) == 15  # those of h come before a tanh
    assert {block.forms for _, blocks in net.hidden_stages() for block in blocks} == {'fused'}
    assert net.rla[0].compress[0].weight.shape == (4, 8, 1, 1)


def test_standardised_weights_stay_as_they_are():
    net = RLAResNet(50, **SMALL, conv_cfg=dict(type='ConvWS')).eval()
    names = list(net.state_dict())
    assert list(fuse(net).state_dict()) == names


@torch.no_grad()
@pytest.mark.parametrize('case', ['v1 50', 'MobileNetV2', 'ECA'])
def test_a_fused_network_is_saved_and_loaded(case, tmp_path, randomise):
    net, image = fuse(randomise(NETWORKS[case]())), torch.randn(1, 3, 65, 72)
    torch.save(net.state_dict(), tmp_path / 'fused.pth')
    other = fuse(NETWORKS[case]())
    other.load_state_dict(torch.load(tmp_path / 'fused.pth'))
    for out, expected in zip(other(image), net(image), strict=True):
        assert torch.equal(out, expected)


@torch.no_grad()
def test_the_backbone_of_a_detector_is_fused_in_place(randomise):
    init_default_scope('mmdet')
    cfg = Config.fromfile(REPO / 'configs/shapes/faster_rcnn_rla_r18_fpn.py').model
    cfg.backbone.update(depth=50, base_channels=8)
    cfg.neck.in_channels = [32, 64, 128, 256]
    detector, image = DETECTORS.build(cfg).eval(), torch.randn(1, 3, 96, 96)
    randomise(detector.backbone)
    expected = detector.extract_feat(image)
    assert fuse(detector) is detector
    assert norms(detector) == 15
    assert_close(detector.extract_feat(image), expected)


class BackboneAndFPN(nn.Module):

    def __init__(self):
        super().__init__()
        self.backbone = RLAResNet(50, base_channels=8, rla=dict(channels=4))
        self.neck = FPN([32, 64, 128, 256], 16, num_outs=5)

    def forward(self, image):
        return self.neck(self.backbone(image))


SIZES = [(128, 160), (97, 129), (75, 133)]


@pytest.fixture(params=['as trained', 'fused'])
def detector_part(request, randomise):
    torch.manual_seed(0)
    net = randomise(BackboneAndFPN()).eval()
    return fuse(net) if request.param == 'fused' else net


# The fused form: tests/export/test_onnx.py.
@pytest.mark.parametrize('detector_part', ['as trained'], indirect=True)
@torch.no_grad()
def test_onnx_gives_the_same_outputs_at_any_size(detector_part, tmp_path):
    import onnxruntime
    path = tmp_path / 'net.onnx'
    size = dict(enumerate((None, None, torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC)))
    torch.onnx.export(detector_part, (torch.randn(1, 3, 96, 128),), path, dynamo=True,
                      dynamic_shapes=(size,), input_names=['image'], verbose=False)
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        assert_close(session.run(None, dict(image=image.cpu().numpy())), detector_part(image))


@torch.no_grad()
def test_an_exported_program_gives_the_same_outputs(detector_part):
    size = dict(enumerate((None, None, torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC)))
    program = torch.export.export(
        detector_part, (torch.randn(1, 3, 96, 128),), dynamic_shapes=(size,)).module()
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        assert_close(program(image), detector_part(image))


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('training', [False, True])
def test_the_backbone_compiles_into_one_graph(dynamic, training, randomise):
    torch._dynamo.reset()
    # Symbolic sizes take long to trace: two stages have every kind of block.
    stages = dict(num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(0, 1))
    net = RLAResNet(18, **SMALL, norm_eval=False, **(stages if dynamic else {}))
    randomise(net).double().train(training)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    for size in ((64, 64), (65, 97)) if dynamic else ((65, 97),):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        gradients = []
        for forward in (compiled, net):
            net.zero_grad()
            outs = forward(image)
            sum(out.sin().sum() for out in outs).backward()
            gradients.append([*outs, *(p.grad for p in net.parameters())])
        for ours, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@torch.no_grad()
@pytest.mark.parametrize('fused', [False, True])
def test_channels_last_stays_and_agrees(fused, randomise):
    net = randomise(RLAResNet(50, **SMALL)).eval()
    net = fuse(net) if fused else net
    image = torch.randn(2, 3, 65, 97)
    expected = net(image)
    outs = net.to(memory_format=torch.channels_last)(
        image.contiguous(memory_format=torch.channels_last))
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in outs)
    assert_close(outs, expected)


@pytest.mark.parametrize('attention', [None, 'ECA'])
@pytest.mark.parametrize('size', [(64, 96), (65, 97)])
def test_inference_on_a_cpu_keeps_the_layout_of_the_images(size, attention, randomise):
    net = RLAResNet(50, base_channels=8, attention=attention and dict(type=attention)).eval()
    randomise(net)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        with plain_path():
            expected = net(images)
        for network in (net, fuse(net)):
            for layout in (torch.contiguous_format, torch.channels_last):
                outs = network(images.contiguous(memory_format=layout))
                for out, other in zip(outs, expected, strict=True):
                    assert out.is_contiguous(memory_format=layout)
                    assert (out - other).abs().max() <= 1e-4 * other.abs().max()


@pytest.mark.parametrize('memory_saving', [True, False])
def test_a_fused_network_keeps_the_layout_in_the_plain_forms(memory_saving):
    net = fuse(RLAResNet(18, base_channels=8, memory_saving=memory_saving, out_hidden=True))
    images = torch.randn(2, 3, 66, 98)
    with torch.no_grad():
        with plain_path():
            outs = net(images)
        outs += net(images[:, :, 1:, 1:])
    assert all(out.is_contiguous() for out in outs), "mmcv's operators would read wrong values"


def test_a_traced_network_takes_another_number_of_images():
    net = RLAResNet(18, base_channels=8).eval()
    with torch.no_grad():
        traced = torch.jit.trace(net, torch.randn(1, 3, 64, 64))
        images = torch.randn(3, 3, 64, 64)
        for out, other in zip(traced(images), net(images), strict=True):
            assert (out - other).abs().max() <= 1e-4 * other.abs().max()


def test_multiply_adds_of_a_fused_network_count_each_convolution_once():
    net = fuse(ResNet(50))
    ours = fuse(RLAResNet(50, rla=None, memory_saving=True))
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert multiply_adds(lambda: ours(images)) == multiply_adds(lambda: net(images))
