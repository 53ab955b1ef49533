"""The authors' published weights by name: the table, and a detector that is tested with them."""
import json

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import init_detector
from mmengine.config import Config

from mmrla.weights.authors import AUTHORS_FILES
from mmrla.weights.drive import is_drive_id
from support import CONFIGS, call, golden
from support.authors import authors_detector

NAME = 'faster_rcnn_r50rla_fpn_1x_coco_388'
CONFIG = CONFIGS / 'faster_rcnn_rla_v3_r50_fpn_1x.py'


def test_the_table_is_complete():
    assert len(AUTHORS_FILES) == len({file.drive_id for file in AUTHORS_FILES.values()}) == 18
    for name, file in AUTHORS_FILES.items():
        assert name == file.name and is_drive_id(file.drive_id)
        # The names end in the top-1 error or the AP, without the point.
        figure = file.figures.get('top1_error', file.figures.get('box_AP'))
        digits = f'{figure:.2f}' if file.task == 'ImageNet' else f'{figure:.1f}'
        assert name.endswith('_' + digits.replace('.', ''))


@pytest.fixture(scope='module')
def made_up(tmp_path_factory):
    """A cache with a made-up file of the authors' layout; its folder, and one entry."""
    home = tmp_path_factory.mktemp('torch')
    (home / 'hub/checkpoints').mkdir(parents=True)
    cfg = Config.fromfile(CONFIG)
    cfg.model.backbone.init_cfg = None
    model = init_detector(cfg, device='cpu', palette='coco')
    _, heads = authors_detector(home / 'hub/checkpoints', model, 'r50_released')
    return home, heads['roi_head.bbox_head.fc_cls.bias']


@pytest.fixture
def cache(made_up, monkeypatch):
    """The folder of the cached files."""
    monkeypatch.setenv('TORCH_HOME', str(made_up[0]))
    yield made_up[0] / 'hub/checkpoints'
    (made_up[0] / f'hub/checkpoints/{NAME}.pth.sha256').unlink()


def test_mmdets_inference_takes_the_name(cache, made_up):
    cfg = Config.fromfile(CONFIG)
    cfg.model.backbone.init_cfg = None
    detector = init_detector(cfg, f'authors://{NAME}', device='cpu', palette='coco')
    assert torch.equal(detector.roi_head.bbox_head.fc_cls.bias, made_up[1])
    with torch.no_grad():
        out = detector.backbone(golden.image())[-1]
    expected = torch.from_numpy(golden.figures('r50_released')['stage4'])
    assert (out - expected).abs().max() < 1e-4 * expected.abs().max()


def coco_of_one_image(folder):
    """A data set in COCO's layout with one image of a person."""
    (folder / 'val2017').mkdir(parents=True)
    (folder / 'annotations').mkdir()
    cv2.imwrite(str(folder / 'val2017/1.png'), np.full((64, 64, 3), 127, np.uint8))
    annotation = dict(id=1, image_id=1, category_id=1, bbox=[8, 8, 32, 32], area=1024, iscrowd=0)
    (folder / 'annotations/instances_val2017.json').write_text(json.dumps(dict(
        images=[dict(id=1, file_name='1.png', width=64, height=64)], annotations=[annotation],
        categories=[dict(id=1, name='person')])))
    return f'{folder}/'


def test_the_test_command_takes_the_name(cache, tmp_path):
    data = coco_of_one_image(tmp_path / 'coco')
    output = call(
        'tools/test.py', str(CONFIG), f'authors://{NAME}', '--work-dir', tmp_path / 'work',
        '--cfg-options', f'test_dataloader.dataset.data_root={data}',
        'test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False',
        'test_dataloader.dataset.pipeline.1.scale=(64,64)',
        f'test_evaluator.ann_file={data}annotations/instances_val2017.json')
    note = cache / f'{NAME}.pth.sha256'
    digest = note.read_text().split()[0]
    assert output.count(f'authors://{NAME}: sha256 {digest}, remembered in {note}') == 1
    assert f'Load checkpoint from authors://{NAME}' in output
    assert 'Epoch(test) [1/1]' in output
