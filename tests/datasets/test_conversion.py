"""Data sets of other formats, and the configs that are written for them."""
import shutil

import pytest
from mmengine.config import Config
from PIL import Image

from mmrla.commands import init
from mmrla.datasets import make_shapes
from mmrla.datasets.conversion import find_dataset, split_off
from mmrla.datasets.conversion.splits import image_size, split_name
from mmrla.datasets.errors import DataError
from mmrla.engine.preflight import check_run
from support.formats import parts_of, write_voc, write_yolo

NAMES = ('disc', 'square', 'triangle', 'star', 'cross', 'ring')


@pytest.fixture(scope='module')
def coco(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'coco', train=6, val=3)


def boxes_of(content):
    """The boxes by file stem, without crowds."""
    names = {image['id']: image['file_name'].split('/')[-1].split('.')[0]
             for image in content['images']}
    return sorted((names[item['image_id']], item['category_id'], *map(round, item['bbox']))
                  for item in content['annotations'] if not item['iscrowd'])


@pytest.fixture
def yolo(coco, tmp_path):
    return write_yolo(coco, tmp_path / 'yolo')


@pytest.fixture
def voc(coco, tmp_path):
    return write_voc(coco, tmp_path / 'voc')


def test_yolo_boxes_are_those_of_coco(coco, yolo):
    dataset = find_dataset(yolo)
    assert (dataset.format, dataset.classes) == ('YOLO', NAMES)
    for split, content, _ in parts_of(coco):
        assert boxes_of(dataset.splits[split].content) == boxes_of(content)


def test_voc_boxes_are_those_of_coco(coco, voc):
    dataset = find_dataset(voc)
    order = sorted({NAMES[item['category_id'] - 1] for _, content, _ in parts_of(coco)
                    for item in content['annotations'] if not item['iscrowd']})
    assert (dataset.format, list(dataset.classes)) == ('Pascal VOC', order)
    for split, content, _ in parts_of(coco):
        for item in content['annotations']:
            item['category_id'] = order.index(NAMES[item['category_id'] - 1]) + 1 if (
                NAMES[item['category_id'] - 1] in order) else 0
        assert boxes_of(dataset.splits[split].content) == boxes_of(content)


def test_a_coco_folder_is_used_as_it_is(coco):
    dataset = find_dataset(coco)
    assert dataset.splits['val'].path == coco / 'annotations/instances_val2017.json'
    assert dataset.splits['val'].images == coco / 'val2017'


def test_polygons_of_yolo_stay_polygons(tmp_path):
    Image.new('RGB', (100, 50)).save(tmp_path / 'a.png')
    (tmp_path / 'a.txt').write_text('0 0.1 0.2 0.5 0.2 0.5 0.8')
    (tmp_path / 'classes.txt').write_text('cat\n')
    item = find_dataset(tmp_path).splits['train'].content['annotations'][0]
    assert item['segmentation'] == [[10, 10, 50, 10, 50, 40]]
    assert item['bbox'] == [10, 10, 40, 30]


def test_a_split_is_the_same_in_any_order(coco):
    split = find_dataset(coco).splits['train']
    split.content['images'].reverse()
    _, first = split_off(split, 0.3)
    split.content['images'].reverse()
    train, second = split_off(split, 0.3)
    assert {image['id'] for image in first.content['images']} == {
        image['id'] for image in second.content['images']}
    assert len(train.content['images']) == 4 and len(second.content['images']) == 2
    kept = {image['id'] for image in train.content['images']}
    assert all(item['image_id'] in kept for item in train.content['annotations'])


def test_a_turned_photo_has_the_size_that_decoders_see(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (40, 20)).save(tmp_path / 'a.jpg', exif=exif)
    assert image_size(tmp_path / 'a.jpg') == (20, 40)


@pytest.mark.parametrize('text, name', [
    ('instances_train2017', 'train'), ('valid', 'val'), ('_annotations.coco', None),
    ('test-dev', 'val'), ('training_images', 'train')])
def test_names_of_parts(text, name):
    assert split_name(text) == name


def test_parts_with_other_categories_are_refused(coco, tmp_path):
    root = shutil.copytree(coco, tmp_path / 'copy')
    path = root / 'annotations/instances_val2017.json'
    path.write_text(path.read_text().replace('"ring"', '"rings"'))
    with pytest.raises(DataError, match='ring'):
        find_dataset(root)


@pytest.mark.parametrize('kind', ['yolo', 'voc', 'coco'])
def test_the_written_config_passes_all_checks(kind, request, tmp_path, monkeypatch, capsys):
    folder = request.getfixturevalue(kind)
    monkeypatch.chdir(tmp_path)
    init.main([str(folder), '-o', 'mine.py'])
    cfg = Config.fromfile('mine.py')
    cfg.work_dir = str(tmp_path / 'work')
    check_run(cfg)
    assert cfg.model.roi_head.bbox_head.num_classes == len(
        cfg.train_dataloader.dataset.metainfo.classes)
    assert 'palette' not in cfg.val_dataloader.dataset.metainfo
    output = capsys.readouterr().out
    assert 'mmrla train mine.py' in output and 'mmrla report work_dirs/mine' in output
