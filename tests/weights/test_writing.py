"""Atomic writes: a complete file or none."""
import errno
import io
import os

import pytest
import torch

from mmrla.weights import writing
from mmrla.weights.errors import CheckpointError, SaveError
from mmrla.weights.reading import read_local


class FullDisk:
    """A file that takes only so many bytes."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize('left', [0, 100, 5000, 10**5])
def test_a_full_disk_raises_and_the_last_checkpoint_stays(tmp_path, left, monkeypatch):
    path = tmp_path / 'epoch_1.pth'
    checkpoint = dict(state_dict=dict(weight=torch.randn(300, 300)))
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    backend, content = writing.AtomicBackend(), buffer.getvalue()
    write = writing._write_through
    backend.put(content, path)
    monkeypatch.setattr(writing, '_write_through', lambda file, action: write(
        FullDisk(file, left), action))
    for name in ('epoch_1.pth', 'epoch_2.pth'):
        with pytest.raises(SaveError, match=f'{name}.*No space left.*free some space'):
            backend.put(content, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ['epoch_1.pth']
    assert torch.equal(read_local(str(path))['state_dict']['weight'],
                       checkpoint['state_dict']['weight'])


def test_a_path_below_a_file_raises_with_the_fix(tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SaveError, match='cannot be written .*not a folder'):
        writing.AtomicBackend().put(b'', tmp_path / 'file/epoch_1.pth')


def test_a_file_that_cannot_be_read_back_never_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / 'epoch_1.pth'
    path.write_bytes(b'the one before')
    with pytest.raises(CheckpointError):
        writing.write_file(path, lambda file: file.write(b'no checkpoint'),
                             verify=writing.verify_checkpoint)
    assert path.read_bytes() == b'the one before'
    assert list(tmp_path.iterdir()) == [path]
