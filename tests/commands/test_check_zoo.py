"""tools/dev/check_zoo.py, and a handful of the zoos' families with smaller networks."""
import pytest
from mmengine.config import Config, ConfigDict

from support import load_tool

check_zoo = load_tool('dev/check_zoo')
WIDTHS = {2048: 512, 1024: 256, 512: 128, 256: 64}
HIDDEN = {8192: 64, 4096: 64, 2048: 512, 65536: 64, 65408: 64}
DETECTORS = {
    'retinanet': 'retinanet/retinanet_r50_fpn_1x_coco.py',
    'ATSS': 'atss/atss_r50_fpn_1x_coco.py',
    'TOOD': 'tood/tood_r50_fpn_1x_coco.py',
    'PAA': 'paa/paa_r50_fpn_1x_coco.py',
    'LAD': 'lad/lad_r50-paa-r101_fpn_2xb8_coco_1x.py',
    'SOLO': 'solo/solo_r50_fpn_1x_coco.py',
    'Soft Teacher': 'soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py',
}
PRETRAINING = {
    'BYOL': 'byol/byol_resnet50_16xb256-coslr-200e_in1k.py',
    'SimCLR': 'simclr/simclr_resnet50_16xb256-coslr-200e_in1k.py',
    'MoCo v2': 'mocov2/mocov2_resnet50_8xb32-coslr-200e_in1k.py',
    'SimSiam': 'simsiam/simsiam_resnet50_8xb32-coslr-100e_in1k.py',
    'Barlow Twins': 'barlowtwins/barlowtwins_resnet50_8xb256-coslr-1000e_in1k.py',
    'ResNet': 'resnet/resnet50_8xb32_in1k.py',
}


def narrow_detector(cfg):
    """Depth 18, with the channels of its stages in the neck."""
    for part in check_zoo.dicts(cfg.model):
        if check_zoo.kind_of(part):
            part['depth'] = 18
        if part.get('type') == 'FPN':
            part['in_channels'] = [WIDTHS[width] for width in part['in_channels']]


def narrow_classifier(cfg):
    """Depth 18, and narrow layers after it."""
    cfg.model.backbone.depth = 18
    for part in check_zoo.dicts(cfg.model):
        for key, value in part.items():
            if isinstance(value, int) and key != 'depth':
                part[key] = HIDDEN.get(value, value)


@pytest.mark.parametrize('package, config, change', [
    *(pytest.param('mmdet', config, narrow_detector, id=name)
      for name, config in DETECTORS.items()),
    *(pytest.param('mmpretrain', config, narrow_classifier, id=name)
      for name, config in PRETRAINING.items())])
def test_a_config_of_the_zoo_builds_trains_and_predicts(package, config, change):
    done = []
    check_zoo.run(package, config, True, done.append, change)
    assert tuple(done) == check_zoo.STAGES


def test_only_the_types_are_changed():
    backbone = dict(type='ResNet', depth=50, plugins=[dict(cfg=dict(type='ContextBlock'))])
    cfg = Config(dict(model=dict(backbone=dict(backbone), teacher=[dict(type='ResNeXt')],
                                 head=dict(type='Head'))))
    check_zoo.swap(cfg)
    assert cfg.model == ConfigDict(
        backbone=dict(backbone, type='RLAResNet'), teacher=[dict(type='RLAResNeXt')],
        head=dict(type='Head'))


def test_a_backbone_of_another_scope_keeps_the_defaults_of_its_package():
    cfg = Config(dict(default_scope='mmdet', model=dict(type='mmpretrain.ResNet', depth=50)))
    check_zoo.swap(cfg)
    assert cfg.model == dict(type='mmpretrain.RLAResNet', depth=50, defaults='mmpretrain')


def test_a_family_gives_one_config_for_each_kind():
    folder = check_zoo.configs_of('mmdet') / 'free_anchor'
    assert [(case.config, case.kinds) for case in check_zoo.cases_of_family('mmdet', folder)] == [
        ('free_anchor/freeanchor_r50_fpn_1x_coco.py', ('ResNet',)),
        ('free_anchor/freeanchor_x101-32x4d_fpn_1x_coco.py', ('ResNeXt',))]


def result(config, done, error=None, plain=None):
    found = dict(package='mmdet', config=config, kinds=['ResNet'], limit=300,
                 ours=dict(done=list(done), error=error, size=64))
    return found if plain is None else dict(
        found, plain=dict(done=list(plain), error='Other: x', size=64))


def test_the_table_says_what_fails_with_ours_alone():
    stages = check_zoo.STAGES
    results = [result('a/1.py', stages), result('a/2.py', stages[:1], 'Other: x', stages[:1]),
               result('b/1.py', stages[:1], 'E: |', stages[:2])]
    assert [check_zoo.fails_with_ours_alone(entry) for entry in results] == [False, False, True]
    assert check_zoo.summary(results).startswith(
        '1 of 3 configs, in 1 of 2 families, build, train and predict. Failures in the same stage '
        'with the plain backbone: 1; with ours alone: 1.')
    rows = list(check_zoo.rows(results))
    assert rows[2] == '| `a/1.py` | ResNet | 64 | yes | yes | yes |  |  |'
    assert rows[3] == '| `a/2.py` | ResNet | 64 | yes | no | no | Other: x | the same |'
    assert rows[4] == '| `b/1.py` | ResNet | 64 | yes | no | no | E: / | built, trained; Other: x |'


def test_a_missing_gradient_is_named(randomise):
    net = check_zoo.MODELS.build(dict(type='RLAResNet', depth=18, base_channels=8))
    holder = check_zoo.nn.Sequential(net)
    with pytest.raises(RuntimeError, match='0.conv1.weight has no gradient'):
        check_zoo.check_gradients(holder)


CASE = check_zoo.Case('mmdet', 'a/1.py', ('ResNet',))


def attempts(monkeypatch, outcomes):
    """Let attempts of a size have a given outcome; the list of sizes that were tried."""
    tried = []

    def attempt(case, ours, limit):
        tried.append(check_zoo.Settings.size)
        stages, error = outcomes[check_zoo.Settings.size]
        return dict(done=list(check_zoo.STAGES[:stages]), error=error)
    monkeypatch.setattr(check_zoo, 'attempt', attempt)
    monkeypatch.setattr(check_zoo.Settings, 'size', 64)
    monkeypatch.setattr(check_zoo.Settings, 'sizes', (64, 256, 384))
    return tried


@pytest.mark.parametrize('outcomes, sizes, size', [
    pytest.param({64: (3, None)}, [64], 64, id='it works'),
    pytest.param({64: (1, 'E: x'), 256: (3, None)}, [64, 256], 256, id='larger images work'),
    pytest.param({64: (0, 'E: x')}, [64], 64, id='it is not built'),
    pytest.param({64: (2, 'E: x'), 256: (1, f'{check_zoo.TOO_SLOW} 300 s')}, [64, 256], 64,
                 id='larger images are too slow'),
    pytest.param({64: (1, 'E: x'), 256: (1, 'E: y'), 384: (1, 'E: z')}, [64, 256, 384], 384,
                 id='no size works')])
def test_larger_images_are_tried_after_a_failure(monkeypatch, outcomes, sizes, size):
    tried = attempts(monkeypatch, outcomes)
    found = check_zoo.attempt_sizes(CASE, True, 300)
    assert tried == sizes
    assert found['size'] == size


def test_the_plain_backbone_runs_only_where_ours_fails(monkeypatch):
    attempts(monkeypatch, {64: (3, None)})
    assert 'plain' not in check_zoo.check(CASE, 300)
    attempts(monkeypatch, {64: (0, 'E: x')})
    assert check_zoo.check(CASE, 300)['plain'] == dict(done=[], error='E: x', size=64)


@pytest.mark.parametrize('model, given', [
    pytest.param(dict(rpn_head=dict(type='RPNHead')), False, id='proposes boxes'),
    pytest.param(dict(rpn_head=None), True, id='proposes none')])
def test_proposals_are_given_to_those_that_find_none(model, given):
    sample = check_zoo.detection_batch(Config(dict(model=model)))['data_samples'][0]
    assert ('proposals' in sample) == given


def test_a_batch_has_labels_for_any_number_of_classes():
    cfg = Config(dict(model=dict(head=dict(num_classes=1203))))
    sample = check_zoo.detection_batch(cfg)['data_samples'][0]
    assert len(sample.text) == 1203


def test_heads_on_regions_keep_their_boxes():
    head = check_zoo.nn.ModuleDict(dict(
        fc_reg=check_zoo.nn.ModuleList([check_zoo.nn.Linear(2, 4)]),
        fc_cls=check_zoo.nn.Linear(2, 4)))
    check_zoo.keep_boxes(head)
    assert not head['fc_reg'][0].weight.any()
    assert head['fc_cls'].weight.any()


@pytest.mark.parametrize('classes, threshold', [(80, 1e-4), (10000, 1e-3)])
def test_thresholds_rise_for_many_classes(classes, threshold):
    cfg = Config(dict(model=dict(head=dict(num_classes=classes),
                                 test_cfg=dict(rcnn=dict(score_thr=1e-4)))))
    check_zoo.raise_thresholds(cfg)
    assert cfg.model.test_cfg.rcnn.score_thr == threshold


def test_a_build_reverts_the_synchronised_norms_of_one_process():
    pytest.importorskip('mmcv.ops', reason='it registers MMSyncBN')
    cfg = Config(dict(model=dict(type='RLAResNet', depth=18, base_channels=8,
                                 norm_cfg=dict(type='MMSyncBN'))))
    kinds = {type(module).__name__ for module in check_zoo.build(cfg).modules()}
    assert 'SyncBatchNorm' not in kinds
    assert not check_zoo.torch.distributed.is_initialized()
