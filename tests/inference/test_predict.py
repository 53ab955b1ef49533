"""Predictions on images and videos, and their files."""
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import mmrla
from mmrla.commands import predict, test
from mmrla.datasets import make_shapes
from mmrla.engine.config_text import ConfigTextError, check_names, parse_config
from mmrla.inference import CocoWriter, open_inputs
from support import CONFIGS

CONFIG = CONFIGS / 'shapes/faster_rcnn_rla_r18_fpn.py'
# A small detector that keeps whatever it finds.
SMALL = {'model.backbone.base_channels': 8, 'model.neck.in_channels': [8, 16, 32, 64],
         'model.test_cfg.rcnn.score_thr': 0.0}
OPTIONS = [f'{key}={value}'.replace(' ', '') for key, value in SMALL.items()]
CLASSES = ('disc', 'square', 'triangle', 'star', 'cross', 'ring')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=2, val=6)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """An untrained detector that finds something on every image."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(SMALL)
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    path = tmp_path_factory.mktemp('checkpoint') / 'epoch_1.pth'
    torch.save(dict(meta=dict(cfg=cfg.pretty_text, dataset_meta=dict(classes=CLASSES)),
                    state_dict=model.state_dict()), path)
    return path


@pytest.fixture(scope='module')
def predictor(checkpoint):
    return mmrla.Predictor(checkpoint, batch_size=2)


@pytest.fixture(scope='module')
def samples(predictor, data):
    return predictor(data / 'val2017')


def test_every_image_of_a_folder_has_a_sample(samples, data):
    assert [Path(sample.img_path).name for sample in samples] == sorted(
        path.name for path in (data / 'val2017').iterdir())
    assert all(len(sample.pred_instances) for sample in samples)


def test_the_batch_size_does_not_change_what_is_found(checkpoint, samples, data):
    single = mmrla.Predictor(checkpoint)(data / 'val2017')
    for one, other in zip(single, samples, strict=True):
        assert torch.allclose(one.pred_instances.bboxes, other.pred_instances.bboxes, atol=1e-2)


def test_threads_that_read_and_draw_beside_a_gpu_give_the_same(
        predictor, samples, data, tmp_path, monkeypatch):
    monkeypatch.setattr(mmrla.Predictor, 'device', torch.device('cuda'))
    again = predictor(data / 'val2017')
    for one, other in zip(again, samples, strict=True):
        assert torch.equal(one.pred_instances.bboxes, other.pred_instances.bboxes)
    args = predict.parse_args(['checkpoint', str(data / 'val2017'), '-o', str(tmp_path / 'out')])
    predict.write_predictions(predictor, open_inputs(args.inputs), args)
    assert len(list((tmp_path / 'out').glob('*.png'))) == len(samples)


def test_arrays_are_found_the_same_as_files(predictor, samples, data):
    path = sorted((data / 'val2017').iterdir())[0]
    found = predictor(cv2.imread(str(path)))[0].pred_instances
    assert torch.allclose(found.scores, samples[0].pred_instances.scores, atol=1e-5)


def test_supervision_gets_class_names(predictor, samples):
    pytest.importorskip('supervision')
    found = predictor.to_supervision(samples[0])
    assert found.data['class_name'][0] == CLASSES[found.class_id[0]]
    assert np.allclose(found.xyxy, samples[0].pred_instances.bboxes.numpy())


def test_the_file_loads_in_pycocotools(predictor, data, tmp_path, capsys):
    truth = data / 'annotations/instances_val2017.json'
    writer = CocoWriter(predictor.classes, str(truth))
    for frame, sample in predictor.stream(data / 'val2017'):
        writer.add(frame, sample)
    writer.write(tmp_path / 'predictions.json')
    loaded = COCO(str(tmp_path / 'predictions.json'))
    assert [category['name'] for category in loaded.dataset['categories']] == list(CLASSES)
    real = COCO(str(truth))
    assert set(loaded.imgs) == set(real.imgs)
    evaluator = COCOeval(real, real.loadRes(loaded.dataset['annotations']), 'bbox')
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    assert 0 <= evaluator.stats[0] < 0.2


@pytest.fixture
def truth(samples, data, tmp_path):
    """Annotations that an untrained detector finds in part: some of its boxes, moved."""
    path = data / 'annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    ids = {image['file_name']: image['id'] for image in content['images']}
    content['annotations'] = []
    for sample in samples:
        found = sample.pred_instances.numpy()
        for number, (x1, y1, x2, y2) in enumerate(found.bboxes[:12:2].tolist()):
            box = [x1 + number, y1, x2 - x1, y2 - y1]
            content['annotations'].append(dict(
                id=len(content['annotations']) + 1, image_id=ids[Path(sample.img_path).name],
                category_id=int(found.labels[2 * number]) + 1, bbox=box, area=box[2] * box[3],
                iscrowd=0))
    (tmp_path / 'truth.json').write_text(json.dumps(content))
    return tmp_path / 'truth.json'


def test_the_figures_of_the_file_are_those_of_mmrla_test(checkpoint, data, truth, tmp_path, capsys,
                                                         monkeypatch):
    monkeypatch.chdir(tmp_path)
    predict.main([str(checkpoint), str(data / 'val2017'), '-o', 'out', '--ann', str(truth),
                  '--no-pictures'])
    real = COCO(str(truth))
    content = json.loads(Path('out/predictions.json').read_text())
    evaluator = COCOeval(real, real.loadRes(content['annotations']), 'bbox')
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    test.main([str(CONFIG), str(checkpoint), '--work-dir', 'work', '--cfg-options', *OPTIONS,
               f'test_dataloader.dataset.data_root={data}', 'test_dataloader.batch_size=1',
               f'test_dataloader.dataset.ann_file={truth}', f'test_evaluator.ann_file={truth}',
               'test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False'])
    figures = json.loads(next(Path('work').glob('*/*.json')).read_text())
    names = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
    assert [figures[f'coco/bbox_{name}'] for name in names] == pytest.approx(
        evaluator.stats[:6], abs=5.1e-4), 'mmrla test rounds to three digits'
    assert 0.05 < evaluator.stats[0] < 0.95, 'figures near 0 or 1 compare nothing'


def test_a_video_becomes_a_video(checkpoint, data, tmp_path, capsys):
    images = [cv2.resize(cv2.imread(str(path)), (96, 64))
              for path in sorted((data / 'val2017').iterdir())]
    writer = cv2.VideoWriter(str(tmp_path / 'in.avi'), cv2.VideoWriter_fourcc(*'MJPG'), 5, (96, 64))
    for image in images:
        writer.write(image)
    writer.release()
    predict.main([str(checkpoint), str(tmp_path / 'in.avi'), '-o', str(tmp_path / 'out'),
                  '--score', '0'])
    video = cv2.VideoCapture(str(tmp_path / 'out/in.mp4'))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == len(images)
    assert (video.get(cv2.CAP_PROP_FRAME_WIDTH), video.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (96, 64)
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    assert [image['file_name'] for image in content['images']][:2] == ['in.avi#000000',
                                                                       'in.avi#000001']


def test_the_command_writes_pictures_and_a_summary(checkpoint, data, tmp_path, capsys):
    image = sorted((data / 'val2017').iterdir())[0]
    predict.main([str(checkpoint), str(image), str(data / 'val2017'), '-o', str(tmp_path),
                  '--score', '0'])
    assert len(list(tmp_path.glob('*.png'))) == 7, 'two inputs of one name share a picture'
    output = capsys.readouterr().out
    assert '7 images' in output and 'disc' in output


def test_the_config_of_a_checkpoint_is_read_as_mmengine_wrote_it():
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict({'x': [float('inf'), -1.5, {'a.b': (1, ), 'c': None}], 'y': 'it\'s "so"'})
    assert parse_config(cfg.pretty_text, 'here').to_dict() == cfg.to_dict()


@pytest.mark.parametrize('text', [
    'import os', 'x = open("a")', 'x = dict(**y)', 'x = [y for y in ()]', 'x.y = 1', 'x = f"{1}"',
    'def f(): pass', 'x = lambda: 1', 'x = y', 'x, y = 1, 2', 'x += 1', 'x = (' * 500])
def test_code_in_a_config_is_refused(text):
    with pytest.raises(ConfigTextError, match='a.pth'):
        parse_config(text, 'a.pth')


@pytest.mark.parametrize('kind', [
    'os.system', 'mmengine.load', "__import__('os').system('x')", 'antigravity',
    'subprocess.run', 'mmengine.utils.misc.import_module', 'mmdet.CameraMotionCompensation'])
def test_names_that_a_registry_would_import_are_refused(kind):
    with pytest.raises(ConfigTextError, match='refused'):
        check_names(Config(dict(model=dict(head=dict(type=kind)))), 'a.pth')


def test_every_config_of_ours_passes_the_check_of_names():
    import mmdet.registry  # noqa: F401
    for path in sorted(CONFIGS.glob('*.py'))[::9]:
        cfg = Config.fromfile(path)
        check_names(Config(dict(model=cfg.model,
                                pipeline=cfg.test_dataloader.dataset.pipeline)), path.name)


def test_inputs_are_counted(data):
    assert len(open_inputs(str(data / 'val2017/*.png'))) == 6
    assert len(open_inputs([data / 'val2017', data / 'train2017'])) == 8
