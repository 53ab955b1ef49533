"""The commands that users type, as they type them."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmrla.datasets import make_shapes
from support import REPO

CONFIG = 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
# A detector of a few seconds; every setting but the sizes is the config's.
TINY = ('model.backbone.base_channels=8', 'model.neck.in_channels=[8,16,32,64]',
        'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False',
        'default_hooks.logger.interval=1', 'default_hooks.checkpoint.interval=1',
        'train_cfg.val_interval=1', 'randomness.seed=0', 'param_scheduler.0.end=2')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=16, val=4)


def call(*command, **kwargs):
    """Run a command in the repository; what it printed, both streams."""
    result = subprocess.run(
        [str(word) for word in command], cwd=REPO, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=600, **kwargs)
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def options(data, *more):
    folder = f'{data}/'
    datasets = [f'{loader}.dataset.data_root={folder}'
                for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader')]
    evaluators = [f'{name}.ann_file={folder}annotations/instances_val2017.json'
                  for name in ('val_evaluator', 'test_evaluator')]
    return ['--cfg-options', *datasets, *evaluators, *TINY, *more]


def train(data, work_dir, *more, arguments=()):
    return call(sys.executable, 'tools/train.py', CONFIG, '--work-dir', work_dir, *arguments,
                *options(data, *more))


def losses(work_dir):
    """The losses of a run by (epoch, iteration)."""
    found = {}
    for path in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            if 'loss' in scalars:
                found[scalars['epoch'], scalars['iter']] = scalars['loss']
    return found


@pytest.fixture(scope='module')
def straight(data, tmp_path_factory):
    """A run of three epochs."""
    work_dir = tmp_path_factory.mktemp('straight')
    train(data, work_dir, 'train_cfg.max_epochs=3')
    return work_dir


def test_training_saves_every_epoch_and_evaluates(straight):
    assert {path.name for path in straight.glob('*.pth')} == {
        'epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth'}
    assert sorted({epoch for epoch, _ in losses(straight)}) == [1, 2, 3]
    assert 'coco/bbox_mAP' in next(straight.glob('*/*.log')).read_text()


def test_a_resumed_run_goes_on_at_the_right_epoch_with_the_same_loss(straight, data, tmp_path):
    (tmp_path / 'epoch_2.pth').write_bytes((straight / 'epoch_2.pth').read_bytes())
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    output = train(data, tmp_path, 'train_cfg.max_epochs=3', arguments=['--resume'])
    assert re.search(r'resumed epoch: 2', output)
    steps = torch.load(tmp_path / 'epoch_3.pth')['optimizer']['state'][0]['step']
    assert steps == 12, 'the optimizer did not go on from 2 epochs of 4 steps'
    resumed, expected = losses(tmp_path), losses(straight)
    assert min(expected.values()) < 0.8 * expected[1, 1], 'no loss to compare: it did not fall'
    assert set(resumed) == {key for key in expected if key[0] == 3}
    for key, loss in resumed.items():
        assert loss == pytest.approx(expected[key], rel=0.15), f'the loss jumps at {key}'


def test_test_reports_what_training_reported(straight, data, tmp_path):
    output = call(sys.executable, 'tools/test.py', CONFIG, straight / 'epoch_3.pth',
                  '--work-dir', tmp_path, '--show-dir', 'drawn', '--out', tmp_path / 'found.pkl',
                  *options(data))
    pattern = r'coco/bbox_mAP: (-?[\d.]+)'
    log = next(straight.glob('*/*.log')).read_text()
    assert re.findall(pattern, output)[-1] == re.findall(pattern, log)[-1]
    assert len(list(tmp_path.glob('*/drawn/*.png'))) == 4
    assert (tmp_path / 'found.pkl').stat().st_size > 0


def test_a_fused_model_reports_the_same(straight, data, tmp_path):
    reports = [call(sys.executable, 'tools/test.py', CONFIG, straight / 'epoch_3.pth',
                    '--work-dir', tmp_path, *arguments, *options(data))
               for arguments in ([], ['--fuse'])]
    found = [float(re.findall(r'coco/bbox_mAP_50: (-?[\d.]+)', text)[-1]) for text in reports]
    assert found[0] == pytest.approx(found[1], abs=0.005)


def test_test_time_augmentation_runs(straight, data, tmp_path):
    output = call(sys.executable, 'tools/test.py', CONFIG, straight / 'epoch_3.pth', '--tta',
                  '--work-dir', tmp_path, *options(data, 'test_dataloader.batch_size=1'))
    assert 'coco/bbox_mAP' in output


def test_a_checkpoint_that_carries_code_stops_every_tool(data, tmp_path, code):
    thing, trace = code
    path = tmp_path / 'malicious.pth'
    torch.save(dict(state_dict={}, meta=thing), path)
    work_dir = ['--work-dir', tmp_path / 'run', *options(data)]
    commands = (['tools/test.py', CONFIG, path, *work_dir],
                ['tools/train.py', CONFIG, '--resume', path, *work_dir],
                ['tools/train.py', CONFIG, '--pretrained', path, *work_dir],
                ['tools/train.py', CONFIG, *work_dir, f'load_from={path}'],
                ['tools/convert_weights.py', path, tmp_path / 'converted.pth'])
    for command in commands:
        result = subprocess.run([sys.executable, *map(str, command)], cwd=REPO, text=True,
                                capture_output=True)
        assert result.returncode != 0
        assert f'checkpoint {path} is refused' in result.stderr.splitlines()[-1]
        assert 'Traceback' not in result.stderr
    assert not trace.exists()


def test_mixed_precision_without_a_gpu_is_explained(data, tmp_path):
    result = subprocess.run(
        [sys.executable, 'tools/train.py', CONFIG, '--amp', '--work-dir', str(tmp_path),
         *options(data)], cwd=REPO, text=True, capture_output=True,
        env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].startswith('--amp needs a GPU')


def test_two_processes_train_and_test_over_gloo(data, tmp_path):
    environment = {**os.environ, 'PORT': '29517'}
    call('tools/dist_train.sh', CONFIG, 2, '--work-dir', tmp_path,
         *options(data, 'train_cfg.max_epochs=6', 'train_dataloader.batch_size=4',
                  'train_cfg.val_interval=10'), env=environment)
    dumped = Config.fromfile(tmp_path / Path(CONFIG).name)
    assert not dumped.get('find_unused_parameters', False)
    found = [loss for _, loss in sorted(losses(tmp_path).items())]
    assert len(found) == 12
    assert sum(found[-3:]) < 0.8 * sum(found[:3]), f'the loss does not fall: {found}'
    output = call('tools/dist_test.sh', CONFIG, tmp_path / 'epoch_6.pth', 2,
                  '--work-dir', tmp_path / 'test', *options(data), env=environment)
    assert 'coco/bbox_mAP' in output


@pytest.mark.parametrize('script, words', [
    ('dist_train.sh', ['config.py']), ('dist_test.sh', ['config.py', 'a.pth']),
    ('slurm_train.sh', ['partition'])])
def test_a_script_without_its_arguments_says_what_they_are(script, words):
    result = subprocess.run([f'tools/{script}', *words], cwd=REPO, text=True, capture_output=True)
    assert result.returncode == 2
    assert f'usage: tools/{script}' in result.stderr


def test_a_wrong_number_of_gpus_is_named():
    result = subprocess.run(['tools/dist_train.sh', CONFIG, 'four'], cwd=REPO, text=True,
                            capture_output=True)
    assert result.returncode == 2 and "'four'" in result.stderr


def test_slurm_gets_what_mmdets_script_gives_it(tmp_path):
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    words = call('tools/slurm_train.sh', 'gpu', 'my job', CONFIG, 'work', '--amp',
                 env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'GPUS': '4',
                      'SRUN_ARGS': '--time=1:00 --mem=8G'}).splitlines()
    for word in ('--partition=gpu', '--job-name=my job', '--gres=gpu:4', '--ntasks=4',
                 '--time=1:00', '--mem=8G', CONFIG, '--work-dir', 'work', 'slurm', '--amp'):
        assert word in words


def test_a_missing_config_is_named():
    result = subprocess.run([sys.executable, 'tools/train.py', 'configs/none.py'], cwd=REPO,
                            text=True, capture_output=True)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == 'config configs/none.py does not exist'


def test_a_run_is_summarised(straight):
    output = call(sys.executable, 'tools/summarize_run.py', straight)
    assert 'after epoch 3' in output
    assert (straight / 'curves.png').stat().st_size > 5000


def test_a_folder_without_a_run_is_named(tmp_path):
    result = subprocess.run([sys.executable, 'tools/summarize_run.py', str(tmp_path)], cwd=REPO,
                            text=True, capture_output=True)
    assert result.returncode != 0 and str(tmp_path) in result.stderr
