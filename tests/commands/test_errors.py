"""Errors that end a command with one line, and errors that keep their traceback."""
import errno

import pytest
import torch
from torch.utils.data import DataLoader

from mmrla.commands.errors import clear_errors
from mmrla.datasets.errors import DataError
from mmrla.engine import DivergedError
from mmrla.weights.errors import CheckpointError, SaveError


@pytest.mark.parametrize('kind', [DataError, CheckpointError, SaveError, DivergedError])
def test_errors_of_mmrla_end_with_their_message(kind):
    with pytest.raises(SystemExit) as found, clear_errors():
        raise kind('epoch_1.pth is damaged. Download it again')
    assert found.value.code == 'epoch_1.pth is damaged. Download it again'
    assert found.value.__suppress_context__, 'the traceback would be printed'


def test_new_error_classes_of_mmrla_are_translated_too():
    kind = type('ProcessGroupError', (RuntimeError,), {'__module__': 'mmrla.engine.errors'})
    with pytest.raises(SystemExit, match='rank 1 has failed'), clear_errors():
        raise kind('rank 1 has failed')


class Damaged(torch.utils.data.Dataset):
    """A data set whose samples cannot be loaded."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        try:
            int('x')
        except ValueError as error:
            raise DataError(f'image {index}.png cannot be used. Remove it') from error


@pytest.mark.parametrize('workers', [0, 1])
def test_the_message_of_a_loader_worker_is_one_line(workers):
    with pytest.raises(SystemExit) as found, clear_errors():
        list(DataLoader(Damaged(), num_workers=workers))
    assert found.value.code == 'image 0.png cannot be used. Remove it'


@pytest.mark.parametrize('error, words', [
    (torch.OutOfMemoryError('CUDA out of memory. Tried'), 'train_dataloader.batch_size'),
    (MemoryError(), 'train_dataloader.batch_size'),
    (RuntimeError('[enforce fail] DefaultCPUAllocator: can\'t allocate memory: you tried'),
     'with_cp=True'),
    (OSError(errno.ENOSPC, 'No space left on device', 'work/log'), 'work/log'),
    (OSError(errno.EROFS, 'Read-only file system', 'work/log'), 'work/log')])
def test_memory_and_write_errors_end_with_advice_in_one_line(error, words):
    with pytest.raises(SystemExit) as found, clear_errors():
        raise error
    assert words in str(found.value) and '--resume' in str(found.value)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize('error', [
    RuntimeError('shape mismatch'),
    RuntimeError('NCCL error in: a.cpp, unhandled system error'),
    FileNotFoundError(errno.ENOENT, 'No such file or directory', 'a.json'),
    PermissionError(errno.EACCES, 'Permission denied', 'a.json'),
    ConnectionError('Connection closed by peer')])
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error)) as found, clear_errors():
        raise error
    assert found.value is error
