"""Training, testing and summarizing as users run them."""
import copy
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import mmdet
import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader

from mmrla.commands import summarize_run
from mmrla.commands import test as test_command
from mmrla.commands import train as train_command
from mmrla.commands.configs import read_runner_config
from mmrla.datasets import make_shapes
from mmrla.weights import CheckpointError, read_safely
from support import ONEDL, REPO, call, load_tool, run_command
from support.scalars import losses

CONFIG = 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
# A detector that trains for a few seconds; only sizes and intervals differ from the config.
TINY = ('model.backbone.base_channels=8', 'model.neck.in_channels=[8,16,32,64]',
        'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False',
        'default_hooks.logger.interval=1', 'default_hooks.checkpoint.interval=1',
        'train_cfg.val_interval=1', 'randomness.seed=0', 'param_scheduler.0.end=2')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=16, val=4)


def options(data, *more):
    """Return the --cfg-options of a small run on a data set."""
    folder = f'{data}/'
    datasets = [f'{loader}.dataset.data_root={folder}'
                for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader')]
    evaluators = [f'{name}.ann_file={folder}annotations/instances_val2017.json'
                  for name in ('val_evaluator', 'test_evaluator')]
    return ['--cfg-options', *datasets, *evaluators, *TINY, *more]


def train(data, work_dir, *more, arguments=()):
    return call('tools/train.py', CONFIG, '--work-dir', work_dir, *arguments,
                *options(data, *more))


def last_line_of_failure(script, *arguments, **kwargs):
    """Run a script that must fail without a traceback; return its last line."""
    result = run_command(script, *arguments, **kwargs)
    assert result.returncode == 1, result.stdout[-1000:]
    assert 'Traceback' not in result.stderr, result.stderr[-3000:]
    return result.stderr.splitlines()[-1]


@pytest.fixture(scope='module')
def finished(data, tmp_path_factory):
    """The work dir of a run of three epochs."""
    work_dir = tmp_path_factory.mktemp('finished')
    train(data, work_dir, 'train_cfg.max_epochs=3')
    return work_dir


def test_training_saves_every_epoch_and_evaluates(finished):
    assert {path.name for path in finished.glob('*.pth')} == {
        'epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth'}
    assert sorted({epoch for epoch, _ in losses(finished)}) == [1, 2, 3]
    assert 'coco/bbox_mAP' in next(finished.glob('*/*.log')).read_text()


def test_a_resumed_run_continues_at_the_right_epoch_with_the_same_loss(finished, data, tmp_path):
    (tmp_path / 'epoch_2.pth').write_bytes((finished / 'epoch_2.pth').read_bytes())
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_2.pth'))
    output = train(data, tmp_path, 'train_cfg.max_epochs=3', arguments=['--resume'])
    assert re.search(r'resumed epoch: 2', output)
    checkpoint = torch.load(tmp_path / 'epoch_3.pth', weights_only=False)
    steps = checkpoint['optimizer']['state'][0]['step']
    assert steps == 12, 'the optimizer state of 2 epochs of 4 steps was not restored'
    resumed, expected = losses(tmp_path), losses(finished)
    assert min(expected.values()) < 0.8 * expected[1, 1], 'the loss does not decrease'
    assert set(resumed) == {key for key in expected if key[0] == 3}
    for key, loss in resumed.items():
        assert loss == pytest.approx(expected[key], rel=0.15), f'the loss jumps at {key}'


def test_testing_reports_the_metrics_of_training(finished, data, tmp_path):
    output = call('tools/test.py', CONFIG, finished / 'epoch_3.pth',
                  '--work-dir', tmp_path, '--show-dir', 'drawn', '--out', tmp_path / 'found.pkl',
                  *options(data))
    pattern = r'coco/bbox_mAP: (-?[\d.]+)'
    log = next(finished.glob('*/*.log')).read_text()
    assert re.findall(pattern, output)[-1] == re.findall(pattern, log)[-1]
    assert len(list(tmp_path.glob('*/drawn/*.png'))) == 4
    assert (tmp_path / 'found.pkl').stat().st_size > 0


def test_a_fused_model_reports_the_same_metrics(finished, data, tmp_path):
    reports = [call('tools/test.py', CONFIG, finished / 'epoch_3.pth',
                    '--work-dir', tmp_path, *arguments, *options(data))
               for arguments in ([], ['--fuse'])]
    found = [float(re.findall(r'coco/bbox_mAP_50: (-?[\d.]+)', text)[-1]) for text in reports]
    assert found[0] == pytest.approx(found[1], abs=0.005)


def test_test_time_augmentation_runs(finished, data, tmp_path):
    output = call('tools/test.py', CONFIG, finished / 'epoch_3.pth', '--tta',
                  '--work-dir', tmp_path, *options(data, 'test_dataloader.batch_size=1'))
    assert 'coco/bbox_mAP' in output


def test_every_tool_refuses_a_checkpoint_with_code(data, tmp_path, code):
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
        assert f'checkpoint {path} is refused' in last_line_of_failure(*command)
    assert not trace.exists()


@pytest.mark.parametrize('script, arguments, key', [
    ('train.py', [], 'val_evaluator'), ('test.py', ['README.md'], 'test_evaluator')])
def test_a_missing_annotation_file_of_an_evaluator_is_named(script, arguments, key, data,
                                                            tmp_path):
    setting = f'{key}.ann_file={tmp_path}/none.json'
    line = last_line_of_failure(f'tools/{script}', CONFIG, *arguments, '--work-dir', tmp_path,
                                *options(data, setting))
    assert line.startswith(f'{key}.ann_file: annotation file {tmp_path}/none.json does not exist')
    assert '--resume' not in line


def test_mixed_precision_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(train_command, 'get_device', lambda: 'cpu')
    with pytest.raises(SystemExit, match='--amp needs a GPU'):
        train_command.main([str(REPO / CONFIG), '--amp'])


def test_scaling_the_learning_rate_needs_a_base_batch_size(tmp_path):
    config = tmp_path / 'config.py'
    config.write_text('a = 1')
    with pytest.raises(SystemExit, match=f'auto_scale_lr.base_batch_size in {config}'):
        train_command.main([str(config), '--auto-scale-lr'])


def test_two_processes_train_and_test_over_gloo(data, tmp_path):
    environment = {**os.environ, 'PORT': str(load_tool('dev/chaos').free_port())}
    # As in the configs for COCO: the learning rate is scaled, and images of one shape
    # form a batch.
    output = call('tools/dist_train.sh', CONFIG, 2, '--work-dir', tmp_path,
                  *options(data, 'train_cfg.max_epochs=6', 'train_dataloader.batch_size=4',
                           'train_dataloader.batch_sampler.type=AspectRatioBatchSampler',
                           'auto_scale_lr.enable=True', 'auto_scale_lr.base_batch_size=8',
                           'train_cfg.val_interval=10'), env=environment)
    assert 'current batch size is 8' in output
    dumped = Config.fromfile(tmp_path / Path(CONFIG).name)
    assert not dumped.get('find_unused_parameters', False)
    found = [loss for _, loss in sorted(losses(tmp_path).items())]
    assert len(found) == 12
    assert sum(found[-3:]) < 0.8 * sum(found[:3]), f'the loss does not decrease: {found}'
    output = call('tools/dist_test.sh', CONFIG, tmp_path / 'epoch_6.pth', 2,
                  '--work-dir', tmp_path / 'test', *options(data), env=environment)
    assert 'coco/bbox_mAP' in output


@pytest.mark.parametrize('script, words', [
    ('dist_train.sh', ['config.py']), ('dist_test.sh', ['config.py', 'a.pth']),
    ('slurm_train.sh', ['partition'])])
def test_a_script_without_its_arguments_prints_its_usage(script, words):
    result = run_command(f'tools/{script}', *words)
    assert result.returncode == 2
    assert f'usage: tools/{script}' in result.stderr


def test_a_wrong_number_of_gpus_is_named():
    result = run_command('tools/dist_train.sh', CONFIG, 'four')
    assert result.returncode == 2 and "'four'" in result.stderr


def test_a_missing_config_is_named():
    line = last_line_of_failure('tools/train.py', 'configs/none.py')
    assert line == 'config configs/none.py does not exist'


def test_the_file_of_predictions_needs_a_pickle_suffix(capsys):
    with pytest.raises(SystemExit):
        test_command.main([CONFIG, 'weights.pth', '--out', 'found.json'])
    assert '--out found.json must end in .pkl' in capsys.readouterr().err


def test_a_run_is_summarized(finished, capsys):
    summarize_run.main([str(finished)])
    assert 'after epoch 3' in capsys.readouterr().out
    assert (finished / 'curves.png').stat().st_size > 5000


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(SystemExit, match=f'{tmp_path} has no training log'):
        summarize_run.main([str(tmp_path)])


MMDET = Path(mmdet.__file__).parent / '.mim/tools'


# onedl-mmdetection's test.py imports torchvision first. A torchvision that was built for CUDA loads
# with a CPU-only torch after `import mmrla` only.
RUN_AFTER_IMPORT = ('import runpy, sys, mmrla; sys.argv.pop(0); '
                    'runpy.run_path(sys.argv[0], run_name="__main__")')


def mmdet_tool(name, *arguments):
    after_import = ['-c', RUN_AFTER_IMPORT] if ONEDL and torch.version.cuda is None else []
    return subprocess.run([sys.executable, *after_import, MMDET / name, *map(str, arguments)],
                          cwd=REPO, text=True, capture_output=True, timeout=600)


def test_mmdets_own_tools_use_our_runner(finished, data, tmp_path, malicious):
    """The promises of docs/reliability.md hold with mmdet's tools/train.py and test.py too."""
    (tmp_path / 'epoch_2.pth').write_bytes((finished / 'epoch_2.pth').read_bytes())
    (tmp_path / 'epoch_3.pth').write_bytes(b'damaged')
    result = mmdet_tool('train.py', CONFIG, '--work-dir', tmp_path, '--resume', 'auto',
                        *options(data, 'train_cfg.max_epochs=3'))
    assert result.returncode == 0, result.stderr[-3000:]
    assert f'resuming from {tmp_path}/epoch_2.pth' in result.stdout + result.stderr
    assert (tmp_path / 'run.json').is_file()
    assert (tmp_path / 'last_checkpoint').read_text() == f'{tmp_path}/epoch_3.pth'
    straight, resumed = (torch.load(folder / 'epoch_3.pth') for folder in (finished, tmp_path))
    assert all(torch.equal(value, resumed['state_dict'][name])
               for name, value in straight['state_dict'].items()), 'the resumed run differs'
    path, trace = malicious
    for name, arguments in (('test.py', [path]), ('train.py', ['--resume', path])):
        result = mmdet_tool(name, CONFIG, *arguments, '--work-dir', tmp_path / 'x', *options(data))
        assert result.returncode != 0 and 'is refused: it holds more than' in result.stderr
    assert not trace.exists()


def test_mmdets_inference_functions_take_our_weights(finished, data, tmp_path, malicious,
                                                     monkeypatch):
    from mmdet.apis import DetInferencer, inference_detector, init_detector
    if ONEDL:  # its readers run code until this call
        monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
        read_safely()
    cfg = read_runner_config(train_command.build_parser().parse_args(
        [str(REPO / CONFIG), *options(data)]))
    image = str(next((data / 'val2017').iterdir()))
    weights = str(finished / 'epoch_3.pth')
    model = init_detector(cfg, weights, device='cpu')
    found = inference_detector(model, image).pred_instances
    inferencer = DetInferencer(cfg, weights, device='cpu', show_progress=False)
    again = inferencer(image, return_datasamples=True)['predictions'][0].pred_instances
    torch.testing.assert_close(found.bboxes, again.bboxes)
    alone = DetInferencer(weights=weights, device='cpu', show_progress=False)
    again = alone(image, return_datasamples=True)['predictions'][0].pred_instances
    torch.testing.assert_close(found.bboxes, again.bboxes)
    other = copy.deepcopy(cfg)
    other.model.backbone.rla.variant = 'v3'
    path, trace = malicious
    # mmengine's own reader raises the second, unless an earlier test called read_safely.
    refusal = CheckpointError if ONEDL else (CheckpointError, pickle.UnpicklingError)
    for function in (init_detector, DetInferencer):
        with pytest.raises(CheckpointError, match="set model.backbone.rla.variant='v1'"):
            function(other, weights, device='cpu')
        with pytest.raises(refusal):
            function(cfg, str(path), device='cpu')
    assert not trace.exists()
