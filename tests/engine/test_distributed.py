"""The backbone on several processes, without a GPU."""
import os
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from mmengine.runner import Runner

from mmrla.engine import runner as runner_module
from support.ddp import WORLD, images, mean_loss, network, train_and_destroy, work
from support.paths import REPO


def test_two_processes_give_the_gradients_of_one(tmp_path):
    mp.spawn(work, (f'file://{tmp_path}/store', str(tmp_path)), WORLD)
    single = network()
    mean_loss(single(images())).backward()
    for rank in range(WORLD):
        gradients = torch.load(tmp_path / f'{rank}.pth')
        for (name, p), gradient in zip(single.named_parameters(), gradients, strict=True):
            if p.grad is None:
                assert gradient is None, name
                continue
            error = (gradient - p.grad).abs().max()
            assert error <= 1e-5 * p.grad.abs().max(), f'{name}: off by {error}'


END = '''
import atexit, pathlib, torch, torch.distributed as dist
from mmrla.engine import distributed

def threads():
    names = pathlib.Path('/proc/self/task').glob('*/comm')
    return sum('gloo' in name.read_text() for name in names)

atexit.register(lambda: print('threads at exit:', threads(), flush=True))
distributed.init_gloo('pytorch')
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
model.runner = dict(model=model)  # a cycle, as in a run
del model
print('threads of a run:', threads())
if {finished}:
    distributed.destroy_at_exit()
'''


@pytest.mark.parametrize('finished', [True, False])
def test_a_finished_run_ends_the_threads_of_gloo(finished):
    environment = {**os.environ, 'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': '127.0.0.1',
                   'MASTER_PORT': '0'}
    result = subprocess.run([sys.executable, '-c', END.format(finished=finished)], cwd=REPO,
                            env=environment, text=True, capture_output=True, timeout=120)
    if finished:
        assert result.returncode == 0, result.stderr
    during, at_exit = (int(line.split(':')[1]) for line in result.stdout.splitlines()[-2:])
    assert during > 0
    assert at_exit == (0 if finished else during)


def test_destroying_a_group_does_not_wait_for_a_thread_that_waits_for_the_gil(tmp_path):
    mp.spawn(train_and_destroy, (str(tmp_path), 20), WORLD)


def test_the_runner_asks_for_it_after_training_and_testing(monkeypatch):
    asked = []
    monkeypatch.setattr(runner_module, 'destroy_at_exit', lambda: asked.append(1))
    for name in ('train', 'val', 'test'):
        monkeypatch.setattr(Runner, name, lambda self, name=name: name)
        run = runner_module.RLARunner.__new__(runner_module.RLARunner)
        run._work_dir, run.prepare_weights = 'work', lambda: None
        assert getattr(run, name)() == name
    assert len(asked) == 3
