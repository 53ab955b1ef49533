"""The benchmark of models."""
import json

import pytest

from mmrla.commands import benchmark
from support import call

CONFIG = 'configs/shapes/faster_rcnn_rla_r18_fpn.py'


def test_figures_are_given_as_ratios_to_the_first_config(tmp_path):
    output = call('tools/benchmark.py', CONFIG, CONFIG, '--backbone', '--size', 64, 64, '--batch',
                  1, '--rounds', 2, '--warm-up', 0, '--json', tmp_path / 'cost.json',
                  '--cfg-options', 'model.backbone.base_channels=8')
    first, second = json.loads((tmp_path / 'cost.json').read_text())['models']
    assert set(first['counts']) == {'parameters', 'multiply-adds', 'fused multiply-adds',
                                    'saved for backward', 'peak memory'}
    assert set(first['times']) == {'train', 'infer', 'fused'}
    assert first['times']['train']['ratio'] == [1, 1, 1]
    for name in ('parameters', 'multiply-adds', 'saved for backward'):
        assert first['counts'][name] > 0 and second['ratios'][name] == 1
    assert 'fused, s' in output
    assert [path.name for path in tmp_path.iterdir()] == ['cost.json'], 'a partial file was left'


@pytest.mark.parametrize('arguments, words', [
    (['--channels-last'], '--channels-last needs --backbone'),
    (['--rounds', '0'], '--rounds 0'), (['--size', '16', '64'], '--size [16, 64]')])
def test_wrong_arguments_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit):
        benchmark.main([CONFIG, *arguments])
    assert words in capsys.readouterr().err


def test_a_missing_config_is_named():
    with pytest.raises(SystemExit, match='config configs/none.py does not exist'):
        benchmark.main(['configs/none.py'])


def test_classifiers_are_measured(tmp_path):
    configs = [f'configs/pretrain/{name}_cifar_folders.py' for name in ('r20', 'rla_r20')]
    call('tools/benchmark.py', *configs, '--size', 32, 32, '--batch', 2, '--rounds', 1,
         '--warm-up', 0, '--modes', 'train', 'infer', '--json', tmp_path / 'time.json')
    plain, rla = json.loads((tmp_path / 'time.json').read_text())['models']
    assert (plain['counts']['parameters'], rla['counts']['parameters']) == (272_314, 285_482)
    assert set(rla['times']) == {'train', 'infer'}
    assert rla['ratios']['multiply-adds'] > 1


def test_the_second_baseline_folds_the_norms_of_the_first_config(tmp_path):
    config = 'configs/shapes/faster_rcnn_r18_fpn.py'
    output = call('tools/benchmark.py', config, CONFIG, '--backbone', '--size', 128, 128,
                  '--batch', 1, '--rounds', 1, '--warm-up', 0, '--modes', 'train',
                  '--efficient-conv-bn-eval', '--json', tmp_path / 'cost.json', '--cfg-options',
                  'model.backbone.base_channels=8', 'model.backbone.norm_eval=True')
    plain, folded, rla = json.loads((tmp_path / 'cost.json').read_text())['models']
    assert folded['name'] == f'{plain["name"]} + efficient_conv_bn_eval'
    saved = 'saved for backward'
    assert folded['ratios'][saved] != 1, 'mmengine folded no norm'
    assert folded['ratios_to_second'][saved] == 1
    assert rla['ratios_to_second'][saved] == pytest.approx(
        rla['counts'][saved] / folded['counts'][saved])
    assert 'train / efficient_conv_bn_eval' in output
