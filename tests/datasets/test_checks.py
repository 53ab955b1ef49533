"""What tools/check_dataset.py and the fuzz find."""
import json
import shutil
import subprocess
import sys

import pytest

from mmrla.datasets import checks, make_class_folders, make_shapes
from mmrla.datasets.errors import DataError
from support import REPO, load_tool


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=6, val=3)


@pytest.fixture
def data(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / 'shapes')


def look(data, change=lambda content: None, split='train', **kwargs):
    """The report of a set whose annotations were changed."""
    path = data / f'annotations/instances_{split}2017.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    report = checks.Report()
    jobs = checks.check_coco(report, path, data / f'{split}2017', **kwargs)
    checks.check_images(report, jobs, workers=0)
    return report


def test_a_good_set_is_fine(data):
    report = look(data, num_classes=6)
    assert report.is_fine, list(report.lines())
    assert report.looked_at['images'] == 6


def first(content):
    return content['annotations'][0]


@pytest.mark.parametrize('kind, change', [
    ('box outside the image', lambda c: first(c).update(bbox=[5000, 5, 10, 10])),
    ('box of no area', lambda c: first(c).update(bbox=[5, 5, 0, 10])),
    ('box with NaN or infinity', lambda c: first(c).update(bbox=[5, 5, float('nan'), 10])),
    ('box that is not four numbers', lambda c: first(c).update(bbox=[5, 5, 10])),
    ('box partly outside', lambda c: first(c).update(bbox=[5, 5, 900, 10])),
    ('area that is not positive', lambda c: first(c).update(area=0)),
    ('unknown category', lambda c: first(c).update(category_id=77)),
    ('unused category', lambda c: c['categories'].append(dict(id=7, name='blob'))),
    ('duplicate category name', lambda c: c['categories'].append(dict(id=7, name='disc'))),
    ('duplicate annotation id', lambda c: c['annotations'].append(first(c))),
    ('duplicate image id', lambda c: c['images'].append(c['images'][0])),
    ('annotation of an unknown image', lambda c: first(c).update(image_id=10**6)),
    ('broken polygon or mask', lambda c: first(c).update(segmentation=[[1, 2, 3, 4]])),
    ('broken polygon or mask', lambda c: first(c).update(segmentation=dict(size=[1, 1]))),
    ('wrong size', lambda c: c['images'][0].update(width=5000)),
    ('missing image', lambda c: c['images'][0].update(file_name='none.png')),
    ('image without a size', lambda c: c['images'][0].pop('height')),
])
def test_what_is_wrong_is_found_once(data, kind, change):
    report = look(data, change)
    assert report.counts[kind] == 1, list(report.lines())
    assert report.found[kind][0]
    assert report.is_fine == (kind in checks.HARMLESS)


def test_num_classes_that_do_not_fit_are_found(data):
    report = look(data, num_classes=80)
    assert '6 categories, the model num_classes=80' in report.found['num_classes does not fit'][0]


@pytest.mark.parametrize('damage', [
    lambda content: b'', lambda content: b'no image', lambda content: content[:-200]])
def test_a_damaged_image_is_found(data, damage):
    path = sorted((data / 'train2017').iterdir())[0]
    path.write_bytes(damage(path.read_bytes()))
    report = look(data)
    kinds = ('unreadable image', 'image that is cut short')
    assert sum(report.counts[kind] for kind in kinds) == 1, list(report.lines())


@pytest.mark.parametrize('content', ['', '{', '[]', '{}', '\x00', '{"images": 3}', '[' * 10**5])
def test_an_annotation_file_of_any_content_is_named(tmp_path, content):
    path = tmp_path / 'broken.json'
    path.write_text(content)
    with pytest.raises(DataError, match='broken.json'):
        checks.read_annotations(path)


def check(*arguments):
    return subprocess.run([sys.executable, 'tools/check_dataset.py', *map(str, arguments)],
                          cwd=REPO, text=True, capture_output=True)


def test_the_tool_reports_counts_examples_and_an_exit_code(data):
    sets = ['--coco', data / 'annotations/instances_train2017.json', data / 'train2017',
            '--coco', data / 'annotations/instances_val2017.json', data / 'val2017']
    shutil.copy(sorted((data / 'train2017').iterdir())[0], sorted((data / 'val2017').iterdir())[0])
    result = check(*sets, '--workers', 2)
    assert result.returncode == 1, result.stderr
    assert '1 x image in both train and val' in result.stdout
    assert 'looked at 9 images' in result.stdout
    assert check('--coco', 'none.json', data).returncode == 2


def test_class_folders_are_looked_at(tmp_path):
    data = make_class_folders(tmp_path / 'classes', train=2, val=1)
    report = checks.Report()
    jobs = checks.check_folders(report, data / 'train', num_classes=6)
    (data / 'train/disc/00000.png').write_bytes(b'')
    for image in (data / 'train/star').iterdir():
        image.unlink()
    checks.check_folders(report, data / 'train', num_classes=5)
    checks.check_images(report, jobs, workers=0)
    assert dict(report.counts) == {
        'class without images': 1, 'num_classes does not fit': 1, 'unreadable image': 1,
        'missing image': 2}


def test_two_hundred_damaged_files_end_in_a_result_or_a_clear_error():
    failures, outcomes = load_tool('dev/fuzz').run(200, seed=1)
    assert not failures, '\n'.join(failures.values())
    assert sum(outcomes.values()) == 200
