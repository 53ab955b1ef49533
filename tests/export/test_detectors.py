"""Detectors as functions of tensors compute what mmdet's ``predict`` does."""
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.registry import MODELS, init_default_scope

from mmrla.export.detectors import exportable
from mmrla.export.errors import ExportError
from mmrla.inference.onnx_detector import paste
from support.detectors import DETECTORS, build, config_of

SIZES = ((96, 120), (128, 100))


def batch():
    """Two images of different sizes, padded to one."""
    images = torch.randn(2, 3, 128, 128)
    for image, (height, width) in zip(images, SIZES, strict=True):
        image[:, height:], image[:, :, width:] = 0, 0
    samples = [DetDataSample(metainfo=dict(
        img_shape=size, ori_shape=size, pad_shape=(128, 128), batch_input_shape=(128, 128),
        scale_factor=(1.0, 1.0))) for size in SIZES]
    return images, samples


def compare(model):
    """Compare both forms on two images."""
    images, samples = batch()
    module = exportable(model)
    with torch.no_grad():
        outputs = dict(zip(module.outputs, module(images, torch.tensor(SIZES)), strict=True))
        expected = model.predict(images, samples)
    assert len(outputs['boxes'])
    for number, sample in enumerate(expected):
        chosen = outputs['image'] == number
        found = {key: value[chosen] for key, value in outputs.items()}
        truth = sample.pred_instances
        assert torch.equal(found['labels'], truth.labels)
        torch.testing.assert_close(found['scores'], truth.scores, atol=1e-6, rtol=0)
        torch.testing.assert_close(found['boxes'], truth.bboxes, atol=1e-4, rtol=0)
        if 'masks' in found:
            masks = paste(found['masks'].numpy(), found['boxes'].numpy(), SIZES[number], 0.5)
            assert np.mean(masks != truth.masks.numpy()) < 1e-4


@pytest.mark.parametrize('name', DETECTORS)
def test_the_detections_are_those_of_mmdet(name):
    compare(build(config_of(name)))


@pytest.mark.parametrize('changes', [
    {'model.roi_head.bbox_head.reg_class_agnostic': True},
    {'model.roi_head.mask_head.class_agnostic': True},
    {'model.test_cfg.rpn.nms_pre': -1},
    {'model.test_cfg.rpn.min_bbox_size': 12},
    {'model.rpn_head.bbox_coder.clip_border': False},
    {'model.test_cfg.rcnn.max_per_img': 3},
], ids=lambda changes: next(iter(changes)).partition('.')[2])
def test_settings_of_a_two_stage_detector_count(changes):
    compare(build(config_of('mask_rcnn_rla_eca_r18_fpn', **changes)))


def test_a_softmax_head_has_no_score_of_the_background():
    cfg = config_of('retinanet_rla_r18_fpn')
    cfg.model.bbox_head.loss_cls = dict(type='CrossEntropyLoss', use_sigmoid=False)
    compare(build(cfg))


@pytest.mark.parametrize('name', DETECTORS)
def test_nothing_found_gives_empty_tensors(name):
    key = 'model.test_cfg' if name.startswith('retina') else 'model.test_cfg.rcnn'
    module = exportable(build(config_of(name, **{f'{key}.score_thr': 1.0})))
    with torch.no_grad():
        outputs = module(batch()[0], torch.tensor(SIZES))
    assert [len(output) for output in outputs] == [0] * len(module.outputs)


@pytest.mark.parametrize('changes, message', [
    ({'model.test_cfg.rcnn.nms.type': 'soft_nms'}, 'soft_nms'),
    ({'model.test_cfg.rpn.nms.class_agnostic': True}, 'class_agnostic'),
    ({'model.roi_head.bbox_roi_extractor.roi_layer.pool_mode': 'max'}, 'pool_mode'),
    ({'model.roi_head.bbox_roi_extractor.type': 'GenericRoIExtractor'}, 'GenericRoIExtractor'),
    ({'model.rpn_head.bbox_coder.add_ctr_clamp': True}, 'add_ctr_clamp'),
    ({'model.roi_head.bbox_head.bbox_coder.add_ctr_clamp': True}, 'add_ctr_clamp'),
    ({'model.roi_head.bbox_head.bbox_coder': dict(type='LegacyDeltaXYWHBBoxCoder')},
     'LegacyDeltaXYWHBBoxCoder'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_what_cannot_be_exported_is_named(changes, message):
    with pytest.raises(ExportError, match=message):
        exportable(build(config_of('faster_rcnn_rla_r18_fpn', **changes)))


def test_a_loss_with_scores_of_its_own_is_named():
    cfg = config_of('faster_rcnn_rla_r18_fpn')
    cfg.model.roi_head.bbox_head.loss_cls = dict(type='SeesawLoss', num_classes=6)
    init_default_scope('mmdet')
    with pytest.raises(ExportError, match='SeesawLoss'):
        exportable(MODELS.build(cfg.model))


def test_another_kind_of_detector_is_named():
    with pytest.raises(ExportError, match='Linear cannot be exported; Faster R-CNN'):
        exportable(torch.nn.Linear(2, 2))
