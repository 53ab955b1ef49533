"""Loading into models: the warm start, what fits and what does not, and the report."""
import copy
import logging
import pickle
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from mmdet.models import ResNet
from mmengine.hooks import EMAHook
from mmengine.model import ExponentialMovingAverage, PretrainedInit, initialize
from mmengine.runner import get_state_dict, load_checkpoint, save_checkpoint
from torch import nn

from mmrla.models import RLACifarResNet, RLAMobileNetV2, RLAPooling, RLAResNet
from mmrla.models.rla import last_convolution
from mmrla.weights import load_weights
from mmrla.weights.errors import CheckpointError
from mmrla.weights.fit import NEUTRAL, WARM_START, WIDENED
from mmrla.weights.loading import BY_THE_MODEL
from support import golden
from support.runners import make_runner

SMALL = dict(depth=18, base_channels=8, norm_eval=False)
NEW = dict(channels=4)


@pytest.fixture
def save(tmp_path):
    """Write weights to a file; its path."""

    def write(state, name='weights.pth', **extra):
        torch.save(dict(state_dict=state, **extra) if extra else state, tmp_path / name)
        return str(tmp_path / name)

    return write


def init(net, path):
    net.init_cfg = dict(type='Pretrained', checkpoint=path)
    net.init_weights()
    return net


def total(outs):
    return sum(out.double().square().mean() for out in outs)


# The warm start

ATTENTIONS = [None, 'SE', 'ECA', 'CBAM', 'GC', 'NL']


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('rla', [dict(channels=8), None], ids=['rla', 'plain'])
@pytest.mark.parametrize('depth, dtype, tolerance', [
    (18, torch.float64, 1e-12), (50, torch.float64, 1e-12), (101, torch.float64, 1e-12),
    (18, torch.float32, 1e-5)])
def test_a_warm_start_computes_what_mmdets_resnet_computes(
        depth, rla, attention, dtype, tolerance, training, save, randomise):
    plain = randomise(ResNet(depth, base_channels=16, stem_channels=16, norm_eval=False))
    net = RLAResNet(depth, base_channels=16, norm_eval=False, rla=rla,
                    attention=attention and dict(type=attention))
    init(net, save(plain.state_dict()))
    for model in (plain, net):
        model.to(dtype)
        model.train(training)
    image = torch.randn(2, 3, 65, 97, dtype=dtype)
    with torch.no_grad():
        for out, expected in zip(net(image), plain(image), strict=True):
            assert (out - expected).abs().max() <= tolerance * expected.abs().max()


def warm_classifier(in_channels, **kwargs):
    """A backbone, neck and head under the names of a classifier."""
    hidden = kwargs['rla'] is not None
    model = nn.Module()
    model.backbone = RLAResNet(**SMALL, out_indices=(3,), out_hidden=hidden, **kwargs)
    model.neck = RLAPooling(4) if hidden else None
    model.head = nn.Module()
    model.head.fc = nn.Linear(in_channels, 5)
    return model.eval()


def logits(model, image):
    features = model.backbone(image)
    pooled = features[0].mean((2, 3)) if model.neck is None else model.neck(features)[0]
    return model.head.fc(pooled)


def test_a_plain_classifier_becomes_an_rla_classifier(save, randomise):
    plain = randomise(warm_classifier(64, rla=None))
    model = warm_classifier(68, rla=NEW)
    report = load_weights(model, save(plain.state_dict()))
    assert report.adapted[WIDENED] == ['head.fc.weight']
    image = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(logits(model, image), logits(plain, image))


@pytest.mark.parametrize('network, attention', [
    *((RLAResNet, attention) for attention in ATTENTIONS), (RLAMobileNetV2, None),
    (RLAMobileNetV2, 'ECA')])
def test_training_moves_all_new_parts_of_a_warm_start(network, attention, save, randomise):
    arguments = dict(SMALL) if network is RLAResNet else dict(
        widen_factor=0.25, out_indices=(1, 2, 4, 7))
    plain = randomise(network(**arguments, rla=None))
    ratio = dict(ratio=1) if attention not in (None, 'ECA') else {}  # no dead ReLU
    arguments.update(norm_eval=True, frozen_stages=1,  # as in a detector
                     attention=attention and dict(type=attention, **ratio))
    net = init(network(**arguments, rla=NEW), save(plain.state_dict())).double().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.02)
    image = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    for step in range(20):
        optimizer.zero_grad()
        total(net(image)).backward()
        if step == 0:  # h enters at once; the layers that compute h follow at the next step
            readers = [last_convolution(reader).weight for reader in net.readers()]
            assert all(weight.abs().max() == 0 for weight in readers)
            assert sum(weight.grad.abs().max() == 0 for weight in readers) == 1, 'only h^0 is zero'
        optimizer.step()
    moved = {name for name, value in net.named_parameters()
             if not torch.equal(value, before[name])}
    new = {name for name, _ in net.named_parameters()
           if any(part in name for part in ('rla.', 'reader', 'attention'))}
    first = {name for name in new if name.startswith('rla.0.readers.0.')}  # reads h^0 = 0
    assert new - first - unmovable(net, attention) <= moved
    frozen = {name for name in before if name.startswith(('conv1.', 'layer1.'))} - new
    assert not frozen & moved
    statistics = {name for name, value in net.state_dict().items()
                  if 'running_mean' in name and not torch.equal(value, before[name])}
    assert statistics and all(
        any(part in name for part in ('rla.', 'reader', 'attention')) for name in statistics)


def unmovable(net, attention):
    """A constant that is added to all inputs of a softmax over pixels has no gradient."""
    names = dict(GC='conv_mask.bias', NL='phi.conv.bias')
    return {name for name, _ in net.named_parameters()
            if attention in names and name.endswith(names[attention])}


@pytest.mark.parametrize('parts, trains', [((), False), (('rla',), True), (None, True)])
def test_a_hidden_path_is_frozen_with_its_stage_unless_it_is_new(parts, trains, randomise):
    net = randomise(RLAResNet(**dict(SMALL, norm_eval=True), frozen_stages=1,
                              rla=dict(channels=4))).train()
    if parts is not None:
        net.set_new_parts(parts)
    assert all(p.requires_grad == trains for p in net.rla[0].parameters())
    assert all(norm.training == trains for norm in net.rla[1].norms)
    assert not any(p.requires_grad for p in net.layer1.parameters())


def test_what_is_new_survives_a_checkpoint(save, randomise):
    """A resumed run must freeze what the interrupted one froze."""
    arguments = dict(SMALL, norm_eval=True, frozen_stages=1, attention=dict(type='ECA'))
    warm = RLAResNet(**arguments, rla=NEW)
    load_weights(warm, save(randomise(RLAResNet(**SMALL, rla=None)).state_dict()))
    assert warm.new_parts == {'rla', 'attention'}
    resumed = RLAResNet(**arguments, rla=NEW)
    load_weights(resumed, save(warm.state_dict()))
    assert resumed.new_parts == {'rla', 'attention'}
    plain_load = RLAResNet(**arguments, rla=NEW)
    plain_load.load_state_dict(warm.state_dict())
    assert plain_load.new_parts == {'rla', 'attention'}
    pretrained = RLAResNet(**arguments, rla=NEW)
    load_weights(pretrained, save(RLAResNet(**arguments, rla=NEW).state_dict()))
    assert pretrained.new_parts == frozenset()


def test_the_log_says_which_parts_are_new(save, randomise, monkeypatch):
    lines = []
    monkeypatch.setattr('mmrla.weights.loading.print_log', lambda text, **_: lines.append(text))
    path = save(randomise(RLAResNet(**SMALL, rla=None)).state_dict())
    load_weights(RLAResNet(**SMALL, rla=NEW, attention=dict(type='ECA')), path)
    assert NEUTRAL in lines[0] and WARM_START in lines[0]
    assert lines[1].startswith('the hidden path is new')
    assert lines[2].startswith('the attention is new')


def test_a_plain_detector_becomes_an_rla_detector_through_load_from(save, randomise):
    plain, warm = nn.Module(), nn.Module()
    plain.backbone, plain.neck = randomise(RLAResNet(**SMALL, rla=None)), nn.Linear(3, 2)
    warm.backbone, warm.neck = RLAResNet(**SMALL, rla=NEW), nn.Linear(3, 2)
    load_checkpoint(warm, save(plain.state_dict(), meta={}))
    assert torch.equal(warm.neck.weight, plain.neck.weight)
    image = torch.randn(1, 3, 64, 64)
    for out, expected in zip(warm.backbone.eval()(image), plain.backbone.eval()(image),
                             strict=True):
        torch.testing.assert_close(out, expected)


def test_the_average_of_a_warm_start_starts_there_too(save, randomise):
    model = nn.Module()
    model.backbone = RLAResNet(**SMALL, rla=NEW)
    hook = EMAHook()
    hook.ema_model = ExponentialMovingAverage(model)
    state = {f'backbone.{name}': value for name, value in randomise(
        RLAResNet(**SMALL, rla=None)).state_dict().items()}
    hook.after_load_checkpoint(SimpleNamespace(_resume=False), dict(state_dict=OrderedDict(state)))
    averaged = hook.ema_model.module.backbone
    assert torch.equal(averaged.conv1.weight, state['backbone.conv1.weight'])
    assert all(reader.weight.abs().max() == 0 for reader in averaged.readers())


# What fits, and what is said of it

def test_the_report_counts_every_entry_once(save, randomise):
    plain = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    net = RLAResNet(**SMALL, rla=NEW)
    report = load_weights(net, save({**plain, 'fc.weight': torch.ones(2)}))
    assert set(report.loaded) == set(plain)
    assert report.adapted == {WARM_START: [f'rla.{s}.readers.{b}.weight' for s in range(4)
                                           for b in range(2)]}
    assert report.ignored == ['fc.weight']
    counted = [*report.loaded, *report.adapted[WARM_START], *report.initial]
    assert sorted(counted) == sorted(net.state_dict())
    assert f'{len(plain)} loaded: conv1.weight, bn1.weight, bn1.bias, ...' in str(report)
    assert f'8 adapted ({WARM_START})' in str(report)
    assert f'{len(report.initial)} left at their initial values: rla.' in str(report)
    assert '1 ignored in the file: fc.weight' in str(report)


def test_heads_for_other_classes_are_left_and_named(save, randomise):
    models = []
    for classes in (80, 3):
        model = nn.Module()
        model.backbone, model.bbox_head = RLAResNet(**SMALL), nn.Linear(4, classes)
        models.append(randomise(model))
    path = save(models[0].state_dict())
    before = models[1].bbox_head.weight.clone()
    report = load_weights(models[1], path)
    assert torch.equal(models[1].bbox_head.weight, before)
    assert torch.equal(models[1].backbone.conv1.weight, models[0].backbone.conv1.weight)
    assert report.ignored[0] == 'bbox_head.weight (shape (80, 4) in the file, (3, 4) here)'


def test_only_part_of_a_file_with_a_prefix(save, randomise):
    state = randomise(RLAResNet(**SMALL)).state_dict()
    path = save({f'teacher.backbone.{name}': value for name, value in state.items()})
    for prefix in ('teacher.', 'teacher', 'teacher.backbone.'):
        assert load_weights(RLAResNet(**SMALL), path, prefix).initial == []
    with pytest.raises(CheckpointError, match="begins with 'student.'"):
        load_weights(RLAResNet(**SMALL), path, 'student')


def test_a_strict_load_needs_every_entry_and_nothing_else(save, randomise, tmp_path, monkeypatch):
    state = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    runner = make_runner(RLAResNet(**SMALL, rla=NEW), tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match='does not match exactly'):
        runner.load_checkpoint(save(state), strict=True)
    net = RLAResNet(**SMALL, rla=None)
    make_runner(net, tmp_path, monkeypatch).load_checkpoint(save(state), strict=True)
    assert torch.equal(net.conv1.weight, state['conv1.weight'])


def test_a_share_below_the_threshold_needs_to_be_asked_for(save, randomise):
    state = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    half = {name: value for i, (name, value) in enumerate(state.items()) if i % 2 or i == 0}
    net = RLAResNet(**SMALL, rla=None)
    with pytest.raises(CheckpointError, match='at least 70% is required.*min_share=0'):
        load_weights(net, save(half))
    net.init_cfg = dict(type='PretrainedBackbone', checkpoint=save(half), min_share=0)
    net.init_weights()
    assert all(torch.equal(net.state_dict()[name], value) for name, value in half.items())


def test_counters_that_old_files_lack_do_not_count(save, randomise):
    state = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    old = {name: value for name, value in state.items() if 'num_batches' not in name}
    assert len(load_weights(RLAResNet(**SMALL, rla=None), save(old)).loaded) == len(old)


# What does not fit

def test_a_checkpoint_of_mmengines_remembers_its_update(tmp_path, randomise):
    model = nn.Module()
    model.backbone = randomise(RLAResNet(**SMALL, rla=dict(channels=4, variant='v2')))
    path = str(tmp_path / 'epoch_1.pth')
    save_checkpoint(dict(state_dict=get_state_dict(model), meta=dict(epoch=1)), path)
    for rla, text in ((dict(channels=4), "rla.variant='v2'"),
                      (dict(channels=8, variant='v2'), 'rla.channels=4'),
                      (dict(channels=4, variant='v2', pre_act=False), 'rla.pre_act=True'),
                      (None, "model.backbone.rla=dict(channels=4, variant='v2'")):
        with pytest.raises(CheckpointError) as error:
            load_weights(RLAResNet(**SMALL, rla=rla), path)
        assert text in str(error.value).split('; set ')[1] and path in str(error.value)
    load_weights(RLAResNet(**SMALL, rla=dict(channels=4, variant='v2')), path)


def test_a_student_and_a_teacher_are_checked_by_themselves(save, randomise):
    pair = nn.Module()
    for name, variant in (('teacher', 'v1'), ('student', 'v3')):
        pair.add_module(name, nn.Module())
        getattr(pair, name).backbone = randomise(
            RLAResNet(**SMALL, rla=dict(channels=4, variant=variant)))
    path = save(pair.state_dict())
    load_checkpoint(pair, path)
    load_weights(RLAResNet(**SMALL, rla=dict(channels=4, variant='v3')), path, 'student')
    with pytest.raises(CheckpointError, match="rla.variant='v1'"):
        load_weights(RLAResNet(**SMALL, rla=dict(channels=4, variant='v3')), path, 'teacher')
    pair.student, pair.teacher = pair.teacher, pair.student
    with pytest.raises(CheckpointError, match='rla.variant='):
        load_checkpoint(pair, path)


def test_mmengines_own_class_in_init_cfg_is_checked_too(save, randomise):
    path = save(randomise(RLAResNet(**SMALL, rla=dict(channels=4, variant='v3'))).state_dict())
    for variant, fits in (('v3', True), ('v1', False)):
        net = RLAResNet(**SMALL, rla=dict(channels=4, variant=variant),
                        init_cfg=dict(type=PretrainedInit, checkpoint=path))
        if fits:
            net.init_weights()
            continue
        with pytest.raises(CheckpointError, match="rla.variant='v3'"):
            net.init_weights()


def test_one_recurrent_convolution_does_not_take_several(save, randomise):
    arguments = dict(widen_factor=0.25, rla=dict(channels=4))
    own = randomise(RLAMobileNetV2(**arguments))
    with pytest.raises(CheckpointError, match='shared_recurrent=False'):
        load_weights(RLAMobileNetV2(**arguments, shared_recurrent=True), save(own.state_dict()))
    shared = randomise(RLAMobileNetV2(**arguments, shared_recurrent=True))
    load_weights(RLAMobileNetV2(**arguments), save(shared.state_dict()))


@pytest.mark.parametrize('file, network, text', [
    (dict(attention=dict(type='ECA')), dict(), 'does not have: layer'),
    (dict(dcn=dict(type='DCNv2', deform_groups=1), stage_with_dcn=(False, True, True, True)),
     dict(), 'does not have: layer'),
    (dict(), dict(deep_stem=True), 'has no entries for stem'),
    (dict(deep_stem=True), dict(), 'has no entries for bn1, conv1'),
    (dict(depth=18), dict(), 'blocks in its stages'),
])
def test_a_network_built_otherwise_stops(file, network, text, save):
    arguments = dict(depth=50, base_channels=8, rla=None)
    path = save(RLAResNet(**{**arguments, **file}).state_dict())
    with pytest.raises(CheckpointError, match=text):
        load_weights(RLAResNet(**{**arguments, **network}), path)


def test_entries_that_stay_random_are_pointed_out(save, monkeypatch):
    lines = []
    monkeypatch.setattr('mmrla.weights.loading.print_log',
                        lambda text, level=logging.INFO, **_: lines.append((level, text)))
    arguments = dict(depth=50, base_channels=8, rla=None)
    path = save(RLAResNet(**arguments).state_dict())
    dcn = dict(dcn=dict(type='DCNv2', deform_groups=1),
               stage_with_dcn=(False, False, False, True))
    load_weights(RLAResNet(**{**arguments, **dcn, 'rla': NEW}), path)
    assert lines[0][0] == logging.WARNING
    assert lines[1] == (logging.WARNING, '6 of these are not in a new part: '
                        'layer4.0.conv2.conv_offset.weight, layer4.0.conv2.conv_offset.bias, '
                        'layer4.1.conv2.conv_offset.weight, ...')


@pytest.mark.parametrize('source, target', [
    (lambda: RLAResNet(18, rla=None), RLAMobileNetV2), (RLAMobileNetV2, lambda: RLAResNet(18)),
    (lambda: RLACifarResNet(20, rla=None), lambda: RLAResNet(18))])
def test_another_architecture_is_not_called_another_depth_or_update(source, target, save):
    with pytest.raises(CheckpointError, match='has another architecture than this RLA'):
        load_weights(target(), save(source().state_dict()))


def test_another_depth_of_a_cifar_network_stops(save):
    path = save(RLACifarResNet(32, rla=None).state_dict())
    with pytest.raises(CheckpointError, match=r'has \[5, 5, 5\] blocks in its stages'):
        load_weights(RLACifarResNet(20, rla=None), path)


@pytest.mark.parametrize('drop, change', [
    ('conv_outs.0.weight', None), (None, 'stages.0.0.conv1.weight')])
def test_half_a_file_of_the_authors_is_named(drop, change, save):
    state = golden.weights('r50_released')
    if drop:
        del state[drop]
    else:
        state[change] = state[change][:, :8]
    with pytest.raises(CheckpointError, match=f'looks like .*{drop or change}'):
        load_weights(RLAResNet(50, rla=dict(variant='v3')), save(state))


def test_mmdet_still_renames_the_heads_of_old_files(save, randomise):
    class Detector(nn.Module):
        """Renames as mmdet's TwoStageDetector does with the weights of an RPN."""

        def __init__(self):
            super().__init__()
            self.backbone, self.rpn_head = RLAResNet(**SMALL), nn.Linear(2, 2)

        def _load_from_state_dict(self, state, prefix, *args):
            for name in [name for name in state if name.startswith('bbox_head.')]:
                state[name.replace('bbox_head', 'rpn_head')] = state.pop(name)
            super()._load_from_state_dict(state, prefix, *args)

    source = randomise(Detector()).state_dict()
    path = save({name.replace('rpn_head', 'bbox_head'): value for name, value in source.items()})
    model = Detector()
    report = load_weights(model, path)
    assert torch.equal(model.rpn_head.weight, source['rpn_head.weight'])
    assert report.adapted[BY_THE_MODEL] == ['rpn_head.weight', 'rpn_head.bias']
    assert report.initial == [] and report.ignored == []


def test_the_authors_weights_need_v3(save):
    path = save({f'module.{name}': value for name, value in golden.weights('r50_released').items()},
                'resnet50_rla_2283.pth.tar', epoch=120)
    with pytest.raises(CheckpointError) as error:
        init(RLAResNet(50), path)
    for text in (path, 'were trained with v3', 'adds the shortcut', 'rla_v3',
                 "set model.backbone.rla.variant='v3'"):
        assert text in str(error.value)


def wrong_file(kind, folder, code):
    """A file that is wrong in one way; a model for it is a small RLA-ResNet-18."""
    path = folder / f'{kind.replace(" ", "_")}.pth'
    state = RLAResNet(**SMALL, rla=dict(channels=4)).state_dict()
    other = dict([('another depth', RLAResNet(34, base_channels=8, rla=dict(channels=4))),
                  ('another k', RLAResNet(18, base_channels=8, rla=dict(channels=6)))])
    if kind == 'truncated':
        torch.save(state, path)
        path.write_bytes(path.read_bytes()[:10000])
    elif kind == 'text':
        path.write_text('404: Not Found')
    elif kind == 'another architecture':
        torch.save({f'blocks.{i}.attn.qkv.weight': torch.ones(3) for i in range(12)}, path)
    elif kind in other:
        torch.save(other[kind].state_dict(), path)
    elif kind == 'code':
        torch.save(dict(state_dict=state, hook=code), path)
    elif kind == 'plain pickle with code':
        path.write_bytes(pickle.dumps(code))
    elif kind == 'empty dict':
        torch.save({}, path)
    elif kind == 'directory':
        path.mkdir()
    elif kind == 'wrong sha256':
        path = path.with_name('weights-0123abcd.pth')
        torch.save(state, path)
    elif kind == 'another attention':
        eca = RLAResNet(**SMALL, rla=dict(channels=4), attention=dict(type='ECA'))
        torch.save(eca.state_dict(), path)
    return path


WRONG = {
    'truncated': 'cannot be read', 'text': 'cannot be read',
    'another architecture': 'has another architecture',
    'another depth': 'set model.backbone.depth=34',
    'another k': 'set model.backbone.rla.channels=6', 'code': 'refused',
    'plain pickle with code': 'cannot be read', 'empty dict': 'it is an empty dict',
    'directory': 'is not a file', 'missing': 'does not exist',
    'wrong sha256': 'its name says 0123abcd', 'another attention': 'set deep_stem, attention'}


def load_by_init_cfg(net, path, runner):
    initialize(net, dict(type='PretrainedBackbone', checkpoint=path))


@pytest.mark.parametrize('load', [
    load_by_init_cfg, lambda net, path, runner: load_weights(net, path),
    lambda net, path, runner: runner.load_checkpoint(path)],
    ids=['init_cfg', 'load_weights', 'runner'])
@pytest.mark.parametrize('kind', WRONG)
def test_a_wrong_file_is_named_in_one_line_and_changes_nothing(kind, load, tmp_path, randomise,
                                                               code, monkeypatch):
    path = wrong_file(kind, tmp_path, code[0])
    net = randomise(RLAResNet(**SMALL, rla=dict(channels=4)))
    runner = make_runner(net, tmp_path / 'run', monkeypatch)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        load(net, str(path), runner)
    message = str(error.value)
    assert str(path) in message and WRONG[kind] in message and '\n' not in message
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not code[1].exists()


# mmengine's own functions, which mmrla does not replace

REFUSED = ('another architecture', 'another depth', 'another k', 'another attention')


@pytest.mark.parametrize('kind', [kind for kind in WRONG if kind not in (
    'empty dict', 'wrong sha256')])
def test_a_wrong_file_stops_mmengines_own_load_checkpoint(kind, tmp_path, randomise, code):
    path = wrong_file(kind, tmp_path, code[0])
    net = randomise(RLAResNet(**SMALL, rla=dict(channels=4)))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(Exception) as error:  # torch's own for files that cannot be read
        load_checkpoint(net, str(path))
    assert kind not in REFUSED or WRONG[kind] in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not code[1].exists()


@pytest.mark.parametrize('load', [
    lambda net, state, path: net.load_state_dict(state),
    lambda net, state, path: load_checkpoint(net, path)], ids=['load_state_dict', 'mmengine'])
def test_a_plain_load_takes_foreign_weights(load, save, randomise):
    image = torch.randn(1, 3, 64, 64)
    plain = randomise(RLAResNet(**SMALL, rla=None)).eval()
    state = {**plain.state_dict(), 'fc.weight': torch.ones(2)}  # a torchvision ResNet's
    net = RLAResNet(**SMALL, rla=NEW).eval()
    load(net, state, save(state))
    for out, expected in zip(net(image), plain(image), strict=True):
        torch.testing.assert_close(out, expected)
    theirs = golden.weights('r50_released')
    net = RLAResNet(50, rla=dict(channels=32, variant='v3'))
    load(net, theirs, save(theirs))
    assert torch.equal(net.rla[0].compress.weight, theirs['conv_outs.0.weight'])


def test_a_plain_load_of_some_own_entries_is_left_to_torch(randomise):
    """As mmdet's SyncNormHook does it."""
    net = randomise(RLAResNet(**SMALL, rla=dict(channels=4)))
    norms = {name: value + 1 for name, value in net.state_dict().items() if 'bn' in name}
    readers = [reader.weight.clone() for reader in net.readers()]
    net.load_state_dict(norms, strict=False)
    assert torch.equal(net.bn1.weight, norms['bn1.weight'])
    assert all(torch.equal(reader.weight, before) for reader, before in zip(
        net.readers(), readers, strict=True)), 'a partial load must not be a warm start'
    with pytest.raises(RuntimeError, match='Missing key'):
        net.load_state_dict({**norms, 'rla.0.compress.weight': net.rla[0].compress.weight})


def test_a_plain_load_checks_the_update(randomise):
    state = randomise(RLAResNet(**SMALL, rla=dict(channels=4, variant='v3'))).state_dict()
    net = RLAResNet(**SMALL, rla=dict(channels=4, variant='v1'))
    with pytest.raises(CheckpointError, match="set model.backbone.rla.variant='v3'"):
        net.load_state_dict(state)
    RLAResNet(**SMALL, rla=dict(channels=4, variant='v3')).load_state_dict(state)


@pytest.mark.parametrize('change', [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))],
                         ids=['deepcopy', 'pickle'])
def test_a_copied_backbone_still_takes_foreign_weights(change, randomise):
    state = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    net = change(RLAResNet(**SMALL, rla=NEW))
    net.load_state_dict({**state, 'fc.weight': torch.ones(2)})
    assert all(reader.weight.abs().max() == 0 for reader in net.readers())
