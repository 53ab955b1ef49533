"""Runs of several processes: stopped by a signal, restarted, or with a bad loss in one of them."""
import atexit
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS

from mmrla.commands import train
from mmrla.weights import writing
from support import load_tool

chaos = load_tool('dev/chaos')
EPOCH = 2  # steps of two processes: 8 images, 2 a step and process


pytestmark = pytest.mark.usefixtures('fast_children')


def run(data, work_dir, act=lambda step: None, by_rank=({}, {}), **options):
    """Train in two processes, with a checkpoint after every step; exit codes and output."""
    hook = dict(_delete_=True, type='SafeCheckpointHook', by_epoch=False, interval=1,
                max_keep_ckpts=2)
    options = dict(default_hooks__checkpoint=hook, train_cfg__max_epochs=3, resume=True,
                   log_level='INFO', launcher='pytorch') | options
    log, port = Path(f'{work_dir}.log'), random.randrange(20000, 60000)
    log.unlink(missing_ok=True)

    def work(rank):
        os.environ.update(RANK=str(rank), WORLD_SIZE='2', LOCAL_RANK=str(rank),
                          MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        cfg = chaos.small_config(data, work_dir, **options | by_rank[rank])
        chaos.train(cfg, chaos.Progress(), act)

    children = [chaos.fork(lambda rank=rank: work(rank), log) for rank in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return codes, log.read_text()


def read(work_dir, step):
    """The checkpoint of a step."""
    return torch.load(Path(work_dir) / f'iter_{step}.pth', weights_only=True)


# Signals and restarts

def test_no_process_ends_before_the_checkpoint_is_complete(data, tmp_path):
    """A launcher ends all processes when the first one ends."""
    def act(step):
        if step != 2:
            return
        write = writing.write_file
        writing.write_file = lambda *args: (time.sleep(2), write(*args), print('is complete'))
        os.kill(os.getpid(), signal.SIGUSR1)
        atexit.register(lambda: print('a process ends'))

    codes, output = run(data, tmp_path / 'run', act=act)
    assert codes == [128 + signal.SIGUSR1] * 2, output[-3000:]
    told = [line for line in output.splitlines() if line in ('is complete', 'a process ends')]
    assert told[:1] == ['is complete'], told
    assert (tmp_path / 'run/iter_3.pth').exists()


def test_a_job_that_slurm_queued_again_resumes(monkeypatch):
    assert not train.is_restarted()
    monkeypatch.setenv('SLURM_RESTART_COUNT', '1')
    assert train.is_restarted()


def test_a_run_that_a_new_machine_restarts_resumes(monkeypatch, tmp_path):
    """torchrun does not count such a restart."""
    monkeypatch.setenv(train.STARTED_FILE, str(tmp_path / 'started'))
    assert not train.is_restarted()
    train.note_start()
    assert train.is_restarted()


def test_a_machine_that_joins_a_restarted_run_resumes_too(data, tmp_path):
    codes, output = run(data, tmp_path / 'run', train_cfg__max_epochs=1)
    assert codes == [0, 0], output[-3000:]
    codes, output = run(data, tmp_path / 'run', by_rank=[dict(resume=False), dict(resume='auto')],
                        train_cfg__max_epochs=2)
    assert codes == [0, 0], output[-3000:]
    assert 'resuming from' in output
    assert read(tmp_path / 'run', 2 * EPOCH)['meta']['epoch'] == 1


# Bad losses

@HOOKS.register_module()
class BadLossHook(Hook):
    """Multiply the loss of one process by a value, in some steps."""

    def __init__(self, rank, value, steps):
        self.rank, self.value, self.steps = rank, value, steps

    def before_train(self, runner):
        if int(os.environ['RANK']) != self.rank:
            return
        model = runner.model.module
        compute = model.loss

        def loss(*args, **kwargs):
            losses = compute(*args, **kwargs)
            if runner.iter in self.steps:
                losses['loss_cls'] = losses['loss_cls'] * self.value
            return losses

        model.loss = loss


@OPTIM_WRAPPERS.register_module()
class ScaledOptimWrapper(AmpOptimWrapper):
    """mmengine's loss scaling in float32, which needs no GPU."""

    def __init__(self, **kwargs):
        OptimWrapper.__init__(self, **kwargs)
        self.loss_scaler, self._scale_update_param = torch.amp.GradScaler('cpu'), None

    optim_context = OptimWrapper.optim_context


def run_with_bad_loss(data, work_dir, value, steps, rank=1, **options):
    """Two processes, of which one has a bad loss; a checkpoint after every step."""
    hook = dict(type='BadLossHook', rank=rank, value=value, steps=steps)
    return run(data, work_dir, custom_hooks=[hook], optim_wrapper__clip_grad=None, **options)


def assert_finite(work_dir, last):
    """Two checkpoints are kept, the last of a step, and no entry has a bad value."""
    paths = sorted(Path(work_dir).glob('*.pth'))
    assert [path.name for path in paths] == [f'iter_{last - 1}.pth', f'iter_{last}.pth']
    for path in paths:
        checkpoint = torch.load(path, weights_only=True)
        values = [*checkpoint['state_dict'].values(), *(
            value for state in checkpoint['optimizer']['state'].values()
            for value in state.values() if isinstance(value, torch.Tensor))]
        assert all((value.float().abs() < 1e6).all() for value in values), path


SPIKE = 1e24  # the loss is finite
ADAM = dict(optim_wrapper__optimizer=dict(_delete_=True, type='AdamW', lr=1e-4))


@pytest.mark.parametrize('value, rank, options, words', [
    (float('nan'), 0, {}, 'the loss is not finite'),
    (float('nan'), 1, {}, 'the loss is not finite'),
    (float('inf'), 1, {}, 'the loss is not finite'),
    (SPIKE, 1, {}, 'above 1e+10'),
    # an average of squares overflows, and the weights stay finite
    (SPIKE, 1, dict(default_hooks__finite_loss__max_loss=1e30, **ADAM),
     'exp_avg_sq is not finite')])
def test_a_bad_loss_of_one_process_ends_all_and_is_not_saved(data, tmp_path, value, rank, options,
                                                             words):
    codes, output = run_with_bad_loss(data, tmp_path / 'run', value, [2], rank, **options)
    assert codes == [1, 1], output[-3000:]
    assert words in output
    assert_finite(tmp_path / 'run', last=2)


def test_loss_scaling_skips_an_infinite_loss_of_one_process(data, tmp_path):
    codes, output = run_with_bad_loss(data, tmp_path / 'run', float('inf'), [2, 3],
                                      optim_wrapper__type='ScaledOptimWrapper')
    assert codes == [0, 0], output[-3000:]
    assert_finite(tmp_path / 'run', last=3 * EPOCH)
    scaler = read(tmp_path / 'run', 3 * EPOCH)['optimizer']['loss_scaler']
    assert scaler['scale'] == torch.amp.GradScaler('cpu').get_scale() / 4, 'two steps were skipped'


def test_infinite_losses_under_loss_scaling_end_all(data, tmp_path):
    codes, output = run_with_bad_loss(
        data, tmp_path / 'run', float('inf'), range(2, 100),
        optim_wrapper__type='ScaledOptimWrapper', default_hooks__finite_loss__patience=3)
    assert codes == [1, 1], output[-3000:]
    assert 'the loss is not finite' in output
    assert_finite(tmp_path / 'run', last=4)
