"""The figures of faster-coco-eval, and the benchmarks as users call them."""
import json
import subprocess
import sys

from support import REPO


def call(*command):
    result = subprocess.run([sys.executable, *map(str, command)], cwd=REPO, text=True,
                            capture_output=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_faster_coco_eval_gives_pycocotools_figures():
    output = call('tools/dev/benchmark_evaluation.py', '--images', 30, '--detections', 20)
    assert 'reported figures equal: True' in output
    assert 'largest difference of the twelve: 0.0e+00' in output
    assert 'mAP 0.000' not in output, 'no detection was right: nothing was compared'


def test_the_benchmark_writes_ratios_to_the_first_config(tmp_path):
    config = 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
    output = call('tools/benchmark.py', config, config, '--backbone', '--size', 64, 64, '--batch',
                  1, '--rounds', 2, '--warm-up', 0, '--json', tmp_path / 'cost.json',
                  '--cfg-options', 'model.backbone.base_channels=8')
    first, second = json.loads((tmp_path / 'cost.json').read_text())['models']
    assert set(first['counts']) == {'parameters', 'multiply-adds', 'fused multiply-adds',
                                    'kept for backward', 'peak memory'}
    assert set(first['times']) == {'train', 'infer', 'fused'}
    assert first['times']['train']['ratio'] == [1, 1, 1]
    for name in ('parameters', 'multiply-adds', 'kept for backward'):
        assert first['counts'][name] > 0 and second['ratios'][name] == 1
    assert 'fused, s' in output
    assert [path.name for path in tmp_path.iterdir()] == ['cost.json']


def test_importing_takes_little_beyond_torch_and_mmengine():
    seconds = float(call('-c', 'import time, torch, mmengine.runner; start = time.process_time(); '
                               'import mmrla; print(time.process_time() - start)'))
    assert seconds < 0.6  # 0.06 on an idle machine


def test_the_benchmark_measures_classifiers(tmp_path):
    configs = [REPO / f'configs/pretrain/{name}_cifar_folders.py' for name in ('r20', 'rla_r20')]
    call('tools/benchmark.py', *configs, '--size', 32, 32, '--batch', 2, '--rounds', 1,
         '--warm-up', 0, '--modes', 'train', 'infer', '--json', tmp_path / 'time.json')
    plain, rla = json.loads((tmp_path / 'time.json').read_text())['models']
    assert (plain['counts']['parameters'], rla['counts']['parameters']) == (272_314, 285_482)
    assert set(rla['times']) == {'train', 'infer'}
    assert rla['ratios']['multiply-adds'] > 1
