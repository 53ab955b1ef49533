"""Detectors as ONNX files, in onnxruntime."""
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest

from mmrla.commands import export, predict
from mmrla.datasets.shapes import draw_image
from mmrla.inference import Predictor
from support import REPO
from support.detectors import CLASSES, build, config_of, save

onnx = pytest.importorskip('onnx')
pytest.importorskip('onnxscript')
pytest.importorskip('onnxruntime')

from mmrla.export.errors import ExportError  # noqa: E402
from mmrla.export.onnx_file import write_onnx  # noqa: E402
from mmrla.export.preprocessing import Preprocessing, with_preprocessing  # noqa: E402
from mmrla.inference import InputError, OnnxPredictor  # noqa: E402

WITHOUT_TORCH = '''
import sys
for name in ('torch', 'torchvision', 'mmcv', 'mmdet', 'mmengine', 'mmrla'):
    sys.modules[name] = None
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
'''


@pytest.fixture(scope='module')
def images():
    return [cv2.resize(draw_image(seed=1, number=number)[0], size)
            for number, size in enumerate(((120, 96), (100, 150), (64, 64)))]


@pytest.fixture(scope='module', params=['mask_rcnn_rla_eca_r18_fpn', 'retinanet_rla_r18_fpn'])
def pair(request, tmp_path_factory):
    """A predictor and the path of its ONNX file."""
    cfg = config_of(request.param)
    folder = tmp_path_factory.mktemp('onnx')
    predictor = Predictor(str(save(cfg, build(cfg), folder / 'epoch_1.pth')), fuse=True)
    export.export(predictor, folder / 'model.onnx')
    return predictor, folder / 'model.onnx'


def assert_same(expected, found, scores=1e-3, boxes=0.1):
    """Compare samples; a score on a threshold may be on either side of it."""
    assert len(expected)
    for one, other in zip(expected, found, strict=True):
        compared = export.largest_differences(one.pred_instances, other.pred_instances)
        assert compared['unmatched'] == 0
        assert compared['scores'] < scores
        assert compared['boxes'] < boxes
        if 'masks' in one.pred_instances:
            assert (one.pred_instances.masks != other.pred_instances.masks).float().mean() < 1e-3


@pytest.mark.parametrize('batch_size', [1, 3])
def test_onnxruntime_finds_what_torch_does(pair, images, batch_size, monkeypatch):
    predictor, path = pair
    monkeypatch.setattr(predictor, 'batch_size', batch_size)
    assert_same(predictor(images), OnnxPredictor(str(path), batch_size)(images))


def test_the_file_has_standard_operators_and_the_classes(pair):
    model = onnx.load(pair[1])
    assert {node.domain for node in model.graph.node} == {''}
    assert not model.functions
    stored = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert tuple(stored['classes']) == CLASSES
    assert stored['preprocessing']['scale'] == [128, 128]


def test_preprocessing_inside_gives_nearly_the_same(pair, images, tmp_path):
    """OpenCV scales with weights of 11 bits, so grey values differ by up to one."""
    predictor, path = pair
    model = onnx.load(path)
    stored = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    model = with_preprocessing(model, Preprocessing.of(predictor.cfg))
    stored['preprocessing']['inside'] = True
    onnx.helper.set_model_props(
        model, {key: json.dumps(value) for key, value in stored.items()})
    onnx.checker.check_model(model)
    write_onnx(model, tmp_path / 'inside.onnx')
    found = OnnxPredictor(str(tmp_path / 'inside.onnx'))(images)
    for one, other in zip(predictor(images), found, strict=True):
        count = min(len(one.pred_instances), len(other.pred_instances), 5)
        assert count
        difference = one.pred_instances.scores[:count] - other.pred_instances.scores[:count]
        assert difference.abs().max() < 0.02


def test_the_command_compares_with_torch(pair, images, capsys):
    predictor, path = pair
    export.check(predictor, path, images)
    assert 'detections by 0' in capsys.readouterr().out


def test_predict_takes_the_file(pair, images, tmp_path):
    cv2.imwrite(str(tmp_path / 'one.png'), images[0])
    predict.main([str(pair[1]), str(tmp_path / 'one.png'), '-o', str(tmp_path / 'out')])
    content = json.loads((tmp_path / 'out/predictions.json').read_text())
    assert len(content['annotations']) == len(pair[0](images[0])[0].pred_instances)
    assert (tmp_path / 'out/one.png').is_file()


def test_the_file_runs_without_torch_and_mmdet(pair, images, tmp_path):
    cv2.imwrite(str(tmp_path / 'one.png'), images[0])
    done = subprocess.run(
        [sys.executable, '-c', WITHOUT_TORCH, REPO / 'mmrla/inference/onnx_detector.py', pair[1],
         tmp_path / 'one.png'], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    best = pair[0](images[0])[0].pred_instances[0]
    _, name, score, *box = done.stdout.splitlines()[0].split()
    assert name == CLASSES[best.labels[0]]
    assert float(score) == pytest.approx(float(best.scores[0]), abs=2e-3)
    assert np.abs(np.array(box, float) - best.bboxes[0].numpy()).max() < 0.2


@pytest.mark.parametrize('content', [b'', b'not a model'])
def test_a_file_that_is_no_detector_is_named(content, tmp_path):
    path = tmp_path / 'model.onnx'
    path.write_bytes(content)
    with pytest.raises(InputError, match='model.onnx cannot be used .* mmrla export'):
        OnnxPredictor(str(path))


def test_a_model_of_another_program_is_named(tmp_path):
    path = tmp_path / 'model.onnx'
    write_onnx(onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[1] x) => (float[1] y) '
        '{ y = Neg(x) }'), path)
    with pytest.raises(InputError, match="its metadata has no 'classes'"):
        OnnxPredictor(str(path))


@pytest.mark.parametrize('arguments, message', [
    (['missing.onnx', 'x.png'], 'missing.onnx does not exist; mmrla export'),
    (['{}', 'x.png', '--fuse'], '--fuse is for checkpoints'),
    (['{}', 'x.png', '--device', 'cpu'], '--device is for checkpoints'),
])
def test_predict_refuses_what_a_file_cannot_take(arguments, message, tmp_path, capsys):
    (tmp_path / 'model.onnx').touch()
    with pytest.raises(SystemExit):
        predict.parse_args([each.format(tmp_path / 'model.onnx') for each in arguments])
    assert message in capsys.readouterr().err


def test_the_name_must_be_that_of_an_onnx_file(capsys):
    with pytest.raises(SystemExit):
        export.parse_args(['epoch_1.pth', '-o', 'model.pth'])
    assert 'model.pth must end in .onnx' in capsys.readouterr().err


@pytest.mark.parametrize('transform, message', [
    (dict(type='Resize', scale=(128, 128), keep_ratio=False), 'has Resize, which'),
    (dict(type='CenterCrop', crop_size=64), 'has CenterCrop, which'),
    (dict(type='Resize', scale=(64, 64), keep_ratio=True), 'has 2 transforms Resize'),
])
def test_a_pipeline_that_cannot_be_exported_is_named(transform, message):
    cfg = config_of('retinanet_rla_r18_fpn')
    pipeline = list(cfg.test_dataloader.dataset.pipeline) + [transform]
    cfg.test_dataloader.dataset.pipeline = pipeline
    with pytest.raises(ExportError, match=message):
        Preprocessing.of(cfg)
