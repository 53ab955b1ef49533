"""The checks of data sets, and the fuzz test of all readers."""
import json
import shutil

import pytest

from mmrla.commands import check_dataset
from mmrla.datasets import checks, make_class_folders, make_shapes
from mmrla.datasets.errors import DataError
from support import CONFIGS, load_tool, run_command


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=6, val=3)


@pytest.fixture
def data(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / 'shapes')


def check(data, change=lambda content: None, split='train', **kwargs):
    """Change the annotations of a data set, and return the report of the checks."""
    path = data / f'annotations/instances_{split}2017.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    report = checks.Report()
    jobs = checks.check_coco(report, path, data / f'{split}2017', **kwargs)
    checks.check_images(report, jobs, workers=0)
    return report


def test_a_valid_data_set_has_no_problems(data):
    report = check(data, num_classes=6)
    assert report.is_fine, list(report.lines())
    assert report.checked['images'] == 6


def first(content):
    return content['annotations'][0]


@pytest.mark.parametrize('kind, change', [
    ('box outside the image', lambda c: first(c).update(bbox=[5000, 5, 10, 10])),
    ('box without area', lambda c: first(c).update(bbox=[5, 5, 0, 10])),
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
def test_each_problem_is_found_once(data, kind, change):
    report = check(data, change)
    assert report.counts[kind] == 1, list(report.lines())
    assert report.found[kind][0]
    assert report.is_fine == (kind in checks.HARMLESS)


def test_a_wrong_number_of_classes_is_found(data):
    report = check(data, num_classes=80)
    example = report.found['num_classes does not fit'][0]
    assert '6 categories, but the model has num_classes=80' in example


@pytest.mark.parametrize('damage', [
    lambda content: b'', lambda content: b'no image', lambda content: content[:-200]])
def test_a_damaged_image_is_found(data, damage):
    path = sorted((data / 'train2017').iterdir())[0]
    path.write_bytes(damage(path.read_bytes()))
    report = check(data)
    kinds = ('unreadable image', 'truncated image')
    assert sum(report.counts[kind] for kind in kinds) == 1, list(report.lines())


@pytest.mark.parametrize('content', ['', '{', '[]', '{}', '\x00', '{"images": 3}', '[' * 10**5])
def test_an_annotation_file_with_wrong_content_is_named(tmp_path, content):
    path = tmp_path / 'broken.json'
    path.write_text(content)
    with pytest.raises(DataError, match='broken.json'):
        checks.read_annotations(path)


def exit_code(*arguments):
    """Run the command in this process."""
    with pytest.raises(SystemExit) as found:
        check_dataset.main([*map(str, arguments), '--workers', '0'])
    return found.value.code


def test_the_command_reports_counts_and_an_exit_code(data):
    sets = ['--coco', data / 'annotations/instances_train2017.json', data / 'train2017',
            '--coco', data / 'annotations/instances_val2017.json', data / 'val2017']
    shutil.copy(sorted((data / 'train2017').iterdir())[0], sorted((data / 'val2017').iterdir())[0])
    result = run_command('tools/check_dataset.py', *sets, '--workers', 2)
    assert result.returncode == 1, result.stderr
    assert '1 x image in both train and val' in result.stdout
    assert 'checked 9 images' in result.stdout


def test_the_exit_code_is_2_if_a_file_is_missing(data, capsys):
    assert exit_code('--coco', 'none.json', data) == 2
    assert 'annotations none.json do not exist' in capsys.readouterr().err
    assert exit_code('none.py') == 2
    assert 'config none.py does not exist' in capsys.readouterr().err


def test_the_data_sets_of_a_config_are_checked(data, tmp_path, capsys):
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{CONFIGS}/shapes/faster_rcnn_rla_r18_fpn.py'\n"
                      f"train_dataloader = dict(dataset=dict(data_root='{data}/'))\n"
                      f"val_dataloader = dict(dataset=dict(data_root='{data}/'))\n")
    assert exit_code(config) == 0
    assert 'checked 9 images' in capsys.readouterr().out


def test_class_folders_are_checked(tmp_path):
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


def test_damaged_files_end_in_a_result_or_a_clear_error():
    failures, outcomes = load_tool('dev/fuzz').run(200, seed=1)
    assert not failures, '\n'.join(failures.values())
    assert sum(outcomes.values()) == 200
