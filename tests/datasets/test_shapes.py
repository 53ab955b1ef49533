"""The embedded detection set."""
import hashlib
import json

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from mmrla.datasets import CLASSES, make_shapes
from mmrla.datasets.errors import DataError
from support import REPO


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=60, val=30)


def digest(folder):
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest())
            for path in files]


def test_the_same_seed_draws_the_same_images(shapes, tmp_path):
    assert digest(make_shapes(tmp_path / 'again', train=60, val=30)) == digest(shapes)


def test_another_seed_draws_other_images(shapes, tmp_path):
    other = make_shapes(tmp_path / 'other', train=3, val=1, seed=1)
    name = 'train2017/000000000001.png'
    assert (other / name).read_bytes() != (shapes / name).read_bytes()


def test_the_layout_is_that_of_coco(shapes):
    for split, count in (('train', 60), ('val', 30)):
        coco = COCO(shapes / f'annotations/instances_{split}2017.json')
        assert [cat['name'] for cat in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        assert len(coco.imgs) == count
        for info in coco.imgs.values():
            image = cv2.imread(str(shapes / f'{split}2017' / info['file_name']))
            assert image.shape == (info['height'], info['width'], 3)


def test_no_image_is_in_both_splits(shapes):
    ids = [set(COCO(shapes / f'annotations/instances_{split}2017.json').imgs)
           for split in ('train', 'val')]
    assert not ids[0] & ids[1]


def test_masks_boxes_and_areas_agree(shapes):
    coco = COCO(shapes / 'annotations/instances_train2017.json')
    for entry in coco.anns.values():
        mask = coco.annToMask(entry)
        rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
        x, y, width, height = entry['bbox']
        assert (x, y) == (columns[0], rows[0])
        assert (width, height) == (columns[-1] - x + 1, rows[-1] - y + 1)
        assert mask.sum() == entry['area'] > 0


def test_crowds_empty_images_and_split_shapes_occur(shapes):
    coco = COCO(shapes / 'annotations/instances_train2017.json')
    entries = list(coco.anns.values())
    crowds = [entry for entry in entries if entry['iscrowd']]
    assert crowds and all(isinstance(entry['segmentation'], dict) for entry in crowds)
    assert any(not coco.getAnnIds(image) for image in coco.imgs)
    assert {entry['category_id'] for entry in entries} == set(range(1, 7))
    assert any(len(entry['segmentation']) > 1 for entry in entries if not entry['iscrowd']), \
        'no shape is divided by another'
    areas = [entry['area'] for entry in entries]
    assert min(areas) < 32**2 < max(areas)
    assert len({(info['height'], info['width']) for info in coco.imgs.values()}) > 20


def test_a_complete_data_set_is_not_written_again(shapes):
    before = (shapes / 'shapes.json').stat().st_mtime_ns
    make_shapes(shapes, train=60, val=30)
    assert (shapes / 'shapes.json').stat().st_mtime_ns == before


def test_a_folder_with_other_files_is_not_overwritten(tmp_path):
    (tmp_path / 'mine.txt').write_text('precious')
    with pytest.raises(DataError, match=str(tmp_path)):
        make_shapes(tmp_path, train=1, val=1)
    assert (tmp_path / 'mine.txt').read_text() == 'precious'


def test_a_failed_call_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr('cv2.imwrite', lambda *_: False)
    with pytest.raises(OSError, match='cannot write'):
        make_shapes(tmp_path / 'shapes', train=1, val=1)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_count_is_named(tmp_path):
    with pytest.raises(DataError, match='val=0'):
        make_shapes(tmp_path / 'shapes', train=1, val=0)


def test_the_config_has_the_classes_of_the_data_set(shapes):
    from mmengine.config import Config
    cfg = Config.fromfile(
        REPO / 'configs/shapes/faster_rcnn_rla_r18_fpn.py')
    names = [cat['name'] for cat in json.loads(
        (shapes / 'annotations/instances_val2017.json').read_text())['categories']]
    assert list(cfg.metainfo.classes) == names
    assert cfg.model.roi_head.bbox_head.num_classes == len(names)


def test_the_harder_set_has_the_same_shapes_in_other_colours(shapes, tmp_path):
    harder = make_shapes(tmp_path / 'harder', train=60, val=1, class_hues=False)
    annotations = [json.loads((folder / 'annotations/instances_train2017.json').read_text())
                   for folder in (shapes, harder)]
    assert annotations[0] == annotations[1]
    spreads = []
    for folder in (shapes, harder):
        hues = []
        for entry in annotations[0]['annotations']:
            if entry['category_id'] == 3 and not entry['iscrowd']:
                image = cv2.imread(str(folder / f'train2017/{entry["image_id"]:012d}.png'))
                mask = COCO(shapes / 'annotations/instances_train2017.json').annToMask(entry) > 0
                hues.append(np.median(cv2.cvtColor(image, cv2.COLOR_BGR2HSV)[mask][:, 0]))
        spreads.append(np.std(hues))
    assert spreads[0] < 10 < 30 < spreads[1], 'hues of the triangles'
    assert make_shapes(harder, train=60, val=1, class_hues=False) == harder
