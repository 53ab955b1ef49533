"""The page about training runs."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mmrla.evaluation.report import NoRunError, read_run, write_report
from mmrla.evaluation.report.matching import KINDS, OUTCOMES, confusion_matrix, match_image
from mmrla.evaluation.report.page import Options, config_differences, flatten, render
from mmrla.evaluation.report.pictures import choose
from mmrla.evaluation.report.results import evaluate, read_truth
from mmrla.evaluation.report.runs import thin

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which(
    'google-chrome')
FLAGS = ('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
         '--disable-background-networking', '--disable-component-update', '--disable-sync',
         '--hide-scrollbars', '--enable-logging=stderr', '--virtual-time-budget=4000')
CLASSES = ['cat', 'dog </script>']


def annotation(number, image, category, box, **more):
    return dict(id=number, image_id=image, category_id=category, bbox=box, area=box[2] * box[3],
                iscrowd=0, **more)


def write_run(folder, shift=0.0, lr=0.01):
    """A run of two epochs on three images, whose detections are shifted to the right."""
    import cv2
    data = folder.parent / 'data'
    data.mkdir(exist_ok=True)
    for number in range(1, 4):
        cv2.imwrite(str(data / f'{number}.jpg'), np.full((60, 80, 3), 60 * number, np.uint8))
    truth = [annotation(1, 1, 7, [5, 5, 20, 20]), annotation(2, 1, 3, [40, 10, 30, 40]),
             annotation(3, 2, 3, [10, 10, 30, 30])]
    (data / 'val.json').write_text(json.dumps(dict(
        images=[dict(id=n, file_name=f'{n}.jpg', width=80, height=60) for n in (1, 2, 3)],
        annotations=truth, categories=[dict(id=7, name=CLASSES[0]), dict(id=3, name=CLASSES[1])])))
    vis = folder / '20260102_030405/vis_data'
    vis.mkdir(parents=True)
    lines = [dict(lr=lr, loss=1 / step, step=step, epoch=1, iter=step, memory=100)
             for step in range(1, 9)]
    lines += [{'coco/bbox_mAP': 0.1 * epoch, 'step': epoch} for epoch in (1, 2)]
    (vis / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)) + '\n{"half a li')
    (vis / 'config.py').write_text(
        f"model = dict(type='FasterRCNN', backbone=dict(type='RLAResNet', depth=18))\n"
        f"optim_wrapper = dict(optimizer=dict(type='SGD', lr={lr}))\n"
        f"val_dataloader = dict(dataset=dict(ann_file='val.json', data_root='{data}', "
        f"data_prefix=dict(img=''), metainfo=dict(classes={CLASSES!r})))\n")
    found = [dict(item, score=0.9, bbox=[item['bbox'][0] + shift, *item['bbox'][1:]])
             for item in truth]
    (folder / 'predictions').mkdir()
    (folder / 'predictions/predictions.json').write_text(json.dumps(found))
    return folder


@pytest.fixture
def runs(tmp_path):
    return [read_run(write_run(tmp_path / 'exact')),
            read_run(write_run(tmp_path / 'shifted', shift=3, lr=0.02))]


def test_curves_and_facts_of_a_run_are_read(runs):
    run = runs[0]
    assert run.curves['loss'] == [(step, 1 / step) for step in range(1, 9)]
    assert run.curves['coco/bbox_mAP'] == [(1, 0.1), (2, 0.2)]
    assert run.facts['started'] == '2026-01-02 03:04'
    assert 'depth 18' in run.facts['backbone'] and '100 MB' in run.facts['memory']


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(NoRunError, match='holds no log'):
        read_run(tmp_path)


def test_the_figures_are_those_of_coco(runs):
    content = write_report(runs, runs[0].folder / 'report.html', Options(cost=False, inside=0))
    exact, shifted = content['figures']['values']
    assert exact['bbox'][0] == pytest.approx(1.0)
    assert 0.1 < shifted['bbox'][0] < 0.9, 'a shift of 3 pixels must cost AP at high IoU'
    assert content['per_class'][0]['bbox'] == [1.0, 1.0]
    assert content['counts'] == [1, 2]


def test_the_classes_keep_the_order_of_the_config(runs):
    truth = read_truth(runs[0])
    assert truth.classes == tuple(CLASSES) and truth.category_ids == (7, 3)


def test_no_detections_at_all_give_zero(runs):
    assert evaluate(read_truth(runs[0]), []).figures['bbox'][0] == 0


@pytest.mark.parametrize('found, kinds, outcomes', [
    ([[0, 0, 10, 10, 1]], ['correct'], ['found']),
    ([[0, 0, 10, 10, 2]], ['wrong class'], ['wrong class']),
    ([[6, 0, 10, 10, 1]], ['poor location'], ['poor location']),
    ([[6, 0, 10, 10, 2]], ['class and location'], ['missed']),
    ([[0, 0, 10, 10, 1], [1, 0, 10, 10, 1]], ['correct', 'duplicate'], ['found']),
    ([[50, 50, 5, 5, 1]], ['background'], ['missed'])])
def test_kinds_of_errors(found, kinds, outcomes):
    detections = [dict(bbox=box[:4], category_id=box[4], score=0.9 - 0.1 * number)
                  for number, box in enumerate(found)]
    match = match_image([annotation(1, 1, 1, [0, 0, 10, 10])], detections, {1: 0, 2: 1}, 0.3)
    assert [KINDS[kind] for kind in match.kinds] == kinds
    assert [OUTCOMES[outcome] for outcome in match.outcomes] == outcomes


def test_detections_on_a_crowd_do_not_count():
    crowd = dict(annotation(1, 1, 1, [0, 0, 40, 40]), iscrowd=1)
    match = match_image([crowd], [dict(bbox=[5, 5, 10, 10], category_id=1, score=0.9)], {1: 0}, 0.3)
    assert len(match.kinds) == 0 and match.badness == 0


def test_the_confusion_matrix_has_truth_in_its_rows(runs):
    pytest.importorskip('supervision')
    match = match_image([annotation(1, 1, 7, [0, 0, 10, 10])],
                        [dict(bbox=[0, 0, 10, 10], category_id=3, score=0.9)], {7: 0, 3: 1}, 0.3)
    matrix = confusion_matrix(read_truth(runs[0]), {1: match})
    assert matrix == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_half_of_the_images_are_the_worst():
    chosen = choose({number: number / 100 for number in range(100)}, 10)
    assert chosen[:5] == [99, 98, 97, 96, 95] and len(set(chosen)) == 10 and chosen[-1] == 0


def test_differences_of_configs(runs):
    rows = config_differences([run.config for run in runs])
    assert {row['name']: row['values'] for row in rows} == {
        'optim_wrapper.optimizer.lr': ['0.01', '0.02']}
    assert flatten(dict(a=[dict(b=1)], c={})) == {'a.0.b': 1, 'c': {}}


def test_long_curves_are_thinned_and_keep_their_end():
    points = thin([(step, 1.0) for step in range(1000)])
    assert len(points) <= 400 and points[-1] == (999, 1.0)


def test_the_page_needs_no_other_file(runs):
    path = runs[0].folder / 'report.html'
    write_report(runs, path, Options(cost=False, inside=0))
    page = path.read_text()
    assert not re.search(r'(src|href)\s*=\s*"(?!data:|#|\$)', page.split('<script type=')[0])
    data = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    assert json.loads(data)['classes'] == CLASSES, 'a class name ended the script'


def test_nan_does_not_break_the_page():
    page = render(dict(title='<b>', value=float('nan')))
    assert '"value":null' in page and '<title>&lt;b&gt;</title>' in page


@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium is installed')
@pytest.mark.parametrize('width', [400, 1400])
def test_a_browser_opens_the_page_without_errors_or_requests(runs, tmp_path, width):
    path, shot, net = tmp_path / 'report.html', tmp_path / 'shot.png', tmp_path / 'net.json'
    write_report(runs, path, Options(cost=False, inside=0))
    result = subprocess.run(
        [CHROMIUM, *FLAGS, f'--window-size={width},3000', f'--user-data-dir={tmp_path / "user"}',
         f'--log-net-log={net}', f'--screenshot={shot}', f'file://{path}'],
        capture_output=True, text=True, timeout=120)
    assert 'CONSOLE' not in result.stderr, result.stderr[-2000:]
    assert shot.stat().st_size > 20000, 'the page is empty'
    addresses = set(re.findall(r'"url":"((?:https?|wss?):[^"]*)"', net.read_text()))
    # The browser itself asks its maker for updates and the time.
    addresses = {item for item in addresses if not re.search(r'\.google(apis)?\.com/', item)}
    assert not addresses, f'the page asks for {addresses}'


@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium is installed')
def test_everything_fits_the_width_of_a_phone(runs, tmp_path):
    path = tmp_path / 'report.html'
    write_report(runs, path, Options(cost=False, inside=0))
    page = path.read_text().replace('</body>', (
        '<script>setTimeout(() => { document.title = "width " + '
        'document.documentElement.scrollWidth + " of " + innerWidth; }, 1500)</script></body>'))
    Path(path).write_text(page)
    result = subprocess.run(
        [CHROMIUM, *FLAGS, '--window-size=400,900', f'--user-data-dir={tmp_path / "user"}',
         '--dump-dom', f'file://{path}'], capture_output=True, text=True, timeout=120)
    found = re.search(r'width (\d+) of (\d+)', result.stdout)
    assert found and int(found[1]) <= int(found[2])
    for name in ('overview', 'curves', 'figures', 'classes', 'precision', 'confusion', 'errors',
                 'images', 'config'):
        assert f'id="{name}"' in result.stdout, f'the section {name} is missing'
