"""Errors that tell the fix."""
import errno

import pytest
import torch

from mmrla.engine import errors
from mmrla.weights.errors import SaveError


@pytest.mark.parametrize('error, words', [
    (torch.OutOfMemoryError('CUDA out of memory. Tried'), 'train_dataloader.batch_size'),
    (MemoryError(), 'train_dataloader.batch_size'),
    (RuntimeError('[enforce fail] DefaultCPUAllocator: can\'t allocate memory: you tried'),
     'with_cp=True'),
    (OSError(errno.EROFS, 'Read-only file system', 'work/log'), 'work/log cannot be written'),
    (OSError(errno.ENOSPC, 'No space left on device'), 'work cannot be written'),
    (RuntimeError('[gloo/tcp] Connection closed by peer [127.0.0.1]'), 'another process'),
    (RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. '), 'num_workers')])
def test_a_known_failure_tells_the_fix_in_one_line(error, words, monkeypatch):
    monkeypatch.setattr(errors.dist, 'is_initialized', lambda: True)
    found = errors.run_error(error, 'work')
    assert isinstance(found, (errors.RunError, SaveError))
    assert words in str(found) and '--resume' in str(found)
    assert len(str(found).splitlines()) == 1


@pytest.mark.parametrize('error', [
    RuntimeError('shape mismatch'), KeyError('loss'),
    RuntimeError('Tensor on NCCL stream has the wrong shape'),
    torch.distributed.DistBackendError('NCCL error: invalid usage'),
    FileNotFoundError(errno.ENOENT, 'No such file', 'data/annotations.json')])
def test_an_unknown_failure_stays_as_it_is(error, monkeypatch):
    monkeypatch.setattr(errors.dist, 'is_initialized', lambda: True)
    assert errors.run_error(error, 'work') is None
