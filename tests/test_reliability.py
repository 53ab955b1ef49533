"""Runs that are killed, resumed, starved or fed with nonsense."""
import errno
import importlib.util
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import runner as mmengine_runner_module

from mmrla import resume, safe_save
from mmrla.datasets import make_shapes
from mmrla.randomness import Batch, RepeatableBatches, SeededItems, random_state, \
    restore_random_state, seeded
from mmrla.safe_load import CheckpointError

REPO = Path(__file__).parent.parent


def tool(name):
    spec = importlib.util.spec_from_file_location(name, REPO / f'tools/{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chaos = tool('chaos')
EPOCH = 4  # steps: 8 images, 2 a step


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    # shapes without empty images, so that an epoch has as many steps as it looks
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=8, val=2)


@pytest.fixture(autouse=True, scope='module')
def _fast_children():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, 'pretty_text', Config.pretty_text)  # put back afterwards
        patch.setattr(mmengine_runner_module, 'collect_env', None)
        threads = torch.get_num_threads()
        chaos.prepare()
        yield
        torch.set_num_threads(threads)


def run(data, work_dir, act=lambda step: None, world=1, **options):
    """Train in children, one a process; their exit status and what they said."""
    options = dict(default_hooks__checkpoint=dict(
        _delete_=True, type='SafeCheckpointHook', interval=1), train_cfg__max_epochs=3,
        resume=True, log_level='INFO') | options
    log = Path(f'{work_dir}.log')
    log.unlink(missing_ok=True)
    port = random.randrange(20000, 60000)

    def work(rank):
        if world > 1:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                              MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        cfg = chaos.small_config(data, work_dir, **options)
        cfg.launcher = 'pytorch' if world > 1 else 'none'
        chaos.train(cfg, chaos.Progress(), act)

    children = [chaos.fork(lambda rank=rank: work(rank), log) for rank in range(world)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return [os.waitstatus_to_exitcode(status) for status in statuses], log.read_text()


def kill_at(*steps):
    """Kill the process after one of these steps, the first that comes."""

    def act(step):
        if step in steps:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def weights(work_dir, name):
    return torch.load(Path(work_dir) / name, weights_only=True)


def assert_same(one, other):
    """Bit by bit, in weights, optimizer and schedules."""
    for key, value in one['state_dict'].items():
        assert torch.equal(value, other['state_dict'][key]), f'{key} differs'
    for index, state in one['optimizer']['state'].items():
        for key, value in state.items():
            assert torch.equal(value, other['optimizer']['state'][index][key])
    assert one['param_schedulers'] == other['param_schedulers']
    assert one['meta']['iter'] == other['meta']['iter']


def mid_epoch(interval=1):
    return dict(_delete_=True, type='SafeCheckpointHook', by_epoch=False, interval=interval,
                max_keep_ckpts=2)


@pytest.mark.parametrize('world', [1, 2])
@pytest.mark.parametrize('kind', ['epochs', 'mid-epoch'])
def test_a_run_killed_five_times_ends_bit_identical(data, tmp_path, world, kind):
    epochs, steps = 3, EPOCH // world
    if kind == 'epochs':
        hook, name = dict(_delete_=True, type='SafeCheckpointHook', interval=1), 'epoch_{}.pth'
        epochs = last = 6
        kills = [steps * epoch + 1 for epoch in range(1, 6)]
    else:
        hook, name = mid_epoch(), 'iter_{}.pth'
        epochs, last = 3 * world, 3 * EPOCH
        kills = [1, 3, 4, 7, 10]
    options = dict(world=world, default_hooks__checkpoint=hook, train_cfg__max_epochs=epochs)
    codes, output = run(data, tmp_path / 'straight', **options)
    assert codes == [0] * world, output[-3000:]
    for step in kills:
        codes, output = run(data, tmp_path / 'killed', act=kill_at(step), **options)
        assert set(codes) != {0} and -signal.SIGKILL in codes, output[-3000:]
    codes, output = run(data, tmp_path / 'killed', **options)
    assert codes == [0] * world, output[-3000:]
    assert_same(*(weights(tmp_path / run, name.format(last)) for run in ('straight', 'killed')))
