"""Paired comparisons over seeds: statistics, report, and runs that see the same images."""
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmrla.commands.compare_seeds import read_log, validates_on_test_images
from mmrla.datasets import make_class_folders
from mmrla.evaluation.seeds import (
    as_markdown,
    bootstrap_interval,
    compare_pairs,
    draw,
    student_interval,
    summarise,
)
from support import CONFIGS, REPO


def test_the_bootstrap_interval_is_that_of_all_resamples():
    assert bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    # Of 4 resamples of (0, 1) the means are 0, 0.5, 0.5, 1.
    assert bootstrap_interval([0.0, 1.0]) == pytest.approx((0.0375, 0.9625))
    many = np.random.default_rng(1).normal(2, 1, 40)
    low, high = bootstrap_interval(many)
    assert low < many.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * many.std() / 40**0.5, rel=0.1)


@pytest.mark.parametrize('seeds, coverage', [(3, 0.68), (5, 0.84)])
def test_the_coverage_that_the_docstring_states(seeds, coverage):
    draws = np.random.default_rng(0).normal(size=(1500, seeds))
    inside = [low <= 0 <= high for low, high in map(bootstrap_interval, draws)]
    assert np.mean(inside) == pytest.approx(coverage, abs=0.035)


def test_students_interval_is_that_of_the_paired_test():
    from scipy.stats import ttest_rel
    ours, plain = np.random.default_rng(0).normal(size=(2, 5))
    expected = ttest_rel(ours, plain).confidence_interval(0.95)
    assert student_interval((ours - plain).tolist()) == pytest.approx(
        (expected.low, expected.high))


def test_only_seeds_that_both_have_are_compared():
    found = compare_pairs({0: 3.0, 1: 5.0, 2: 9.0}, {1: 4.0, 0: 3.5, 7: 0.0})
    assert (found['seeds'], found['differences']) == ([0, 1], [-0.5, 1.0])
    assert (found['mean'], found['better']) == (0.25, 1)
    assert 'bootstrap' not in compare_pairs({0: 1.0}, {0: 2.0})


def run(config, seed, value):
    return dict(config=config, seed=seed, value=value, curve=[[1, value / 2], [2, value]],
                loss=[[1, 2.0], [2, 1.0]], epochs=2, seconds=9.0, cpu_seconds=4.0 + seed)


RUNS = [run('plain', 0, 50.0), run('rla', 0, 52.0), run('plain', 1, 51.0), run('rla', 1, 50.0)]


def test_the_table_and_the_plot_are_made_from_the_results(tmp_path):
    results = dict(settings=dict(metric='accuracy/top1'), runs=RUNS, summary=summarise(RUNS))
    table = as_markdown(results)
    assert '| plain | 2 | 50.5 ± 0.71 |' in table
    assert '| rla | 2 | 51 ± 1.4 | +2, -1 | +0.5 |' in table
    draw(results, tmp_path / 'curves.png')
    assert cv2.imread(str(tmp_path / 'curves.png')).shape[1] > 1000
    (tmp_path / 'results.json').write_text(json.dumps(results))
    done = subprocess.run([sys.executable, REPO / 'tools/compare_seeds.py', '--from-json',
                           tmp_path / 'results.json', '--output', tmp_path / 'again'],
                          text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'again/table.md').read_text() == table == done.stdout


def test_the_log_of_a_resumed_run_counts_once(tmp_path):
    for name, lines in (('1', [dict(loss=4.0, epoch=1, iter=1), dict(loss=2.0, epoch=1, iter=2),
                               {'accuracy/top1': 10.0, 'step': 1}]),
                        ('2', [dict(loss=3.0, epoch=1, iter=2), dict(loss=1.0, epoch=2, iter=3),
                               {'accuracy/top1': 20.0, 'step': 1},
                               {'accuracy/top1': 30.0, 'step': 2}])):
        folder = tmp_path / name / 'vis_data'
        folder.mkdir(parents=True)
        (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    log = read_log(tmp_path, 'accuracy/top1')
    assert log['curve'] == [(1, 20.0), (2, 30.0)]
    assert log['loss'] == [(1, 3.5), (2, 1.0)]


@pytest.mark.parametrize('name, expected', [
    ('pretrain/r20_cifar_folders', True), ('pretrain/rla_r164_cifar10', False),
    ('shapes/faster_rcnn_rla_r18_fpn_hard', True)])
def test_a_validation_counts_as_the_test_only_if_it_is_one(name, expected):
    assert validates_on_test_images(Config.fromfile(CONFIGS / f'{name}.py')) == expected


def test_with_one_seed_all_networks_see_the_same_images(tmp_path):
    """Even if the images are read in the process that trains."""
    make_class_folders(tmp_path / 'data', train=4, val=1)
    seen = []
    for name in ('classifier_r18', 'classifier_rla_r18'):
        cfg = Config.fromfile(CONFIGS / f'shapes/{name}.py')
        cfg.work_dir = str(tmp_path / name)
        cfg.randomness = dict(seed=3)
        for split, folder in (('train', 'train'), ('val', 'val'), ('test', 'val')):
            cfg[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
            cfg[f'{split}_dataloader'].dataset.data_root = str(tmp_path / 'data' / folder)
        runner = Runner.from_cfg(cfg)
        loader = runner.build_dataloader(cfg.train_dataloader, seed=runner.seed)
        optimizer = runner.build_optim_wrapper(cfg.optim_wrapper)
        batches = []
        for batch in loader:
            batches.append(batch)
            runner.model.train_step(batch, optimizer)
        seen.append([[sample.img_path for batch in batches for sample in batch['data_samples']],
                     np.concatenate([batch['inputs'].numpy() for batch in batches])])
    assert seen[0][0] == seen[1][0]
    assert (seen[0][1] == seen[1][1]).all()
    assert seen[0][0] != sorted(seen[0][0]), 'the images are shuffled'


def test_a_missing_config_is_named():
    done = subprocess.run([sys.executable, REPO / 'tools/compare_seeds.py', 'missing.py',
                           '--work-dir', 'x'], text=True, capture_output=True)
    assert done.returncode and 'config missing.py does not exist' in done.stderr


def test_the_page_shows_the_tables_of_the_results_files():
    """docs/evidence.md is made from docs/evidence/*/results.json."""
    page = (REPO / 'docs/evidence.md').read_text()
    for path in (REPO / 'docs/evidence').glob('*/results.json'):
        results = json.loads(path.read_text())
        assert results['summary'].keys() == summarise(results['runs']).keys()
        assert as_markdown(dict(results, summary=summarise(results['runs']))) in page, path
        assert (path.parent / 'curves.png').is_file()
        assert f'evidence/{path.parent.name}/curves.png' in page
