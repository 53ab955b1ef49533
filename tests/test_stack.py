"""What the stack needs to work together."""
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader, save_checkpoint

from mmrla import stack
from mmrla.weights import load_checkpoint


def mmengine_checkpoint_like():
    """Everything mmengine writes besides tensors."""
    history = HistoryBuffer(np.array([1.0, 2.0]), np.array([1, 1]))
    return dict(
        meta=dict(epoch=1, iter=2, cfg='a = 1', seed=3, dataset_meta=dict(classes=('a',))),
        state_dict=dict(weight=torch.ones(2)),
        message_hub=dict(
            log_scalars={'train/loss': history},
            runtime_info=dict(lr=np.float64(0.1), best=np.float32(1), step=np.int64(2),
                              flag=np.bool_(True), array=np.zeros((2, 2), np.uint8)),
            resumed_keys={'train/loss': True}))


def test_what_mmengine_writes_can_be_read(tmp_path):
    path = str(tmp_path / 'epoch_1.pth')
    save_checkpoint(mmengine_checkpoint_like(), path)
    loaded = CheckpointLoader.load_checkpoint(path, 'cpu')
    assert loaded['message_hub']['log_scalars']['train/loss'].mean() == 1.5
    assert loaded['message_hub']['runtime_info']['lr'] == 0.1


def test_another_reader_that_takes_types_off_the_list_changes_nothing(tmp_path):
    path = str(tmp_path / 'epoch_1.pth')
    save_checkpoint(mmengine_checkpoint_like(), path)
    with torch.serialization.safe_globals(stack._mmengine_checkpoint_types()):
        pass  # the end of the context removes them
    loaded = load_checkpoint(path)
    assert loaded['message_hub']['log_scalars']['train/loss'].mean() == 1.5


@pytest.mark.parametrize('owner, name', [(os, 'system'), (HistoryBuffer, '__init__')])
def test_a_checkpoint_may_look_up_nothing_else(owner, name):
    with pytest.raises(pickle.UnpicklingError, match=name):
        stack._history_buffer_method(owner, name)


def test_names_that_numpy_1_wrote_can_be_read(tmp_path):
    plain = tmp_path / 'new.pth'
    torch.save(dict(value=np.float64(0.5)), plain, _use_new_zipfile_serialization=False)
    old = tmp_path / 'old.pth'
    data = plain.read_bytes()
    assert b'numpy._core.multiarray' in data
    old.write_bytes(data.replace(b'numpy._core.multiarray', b'numpy.core.multiarray'))
    assert CheckpointLoader.load_checkpoint(str(old), 'cpu')['value'] == 0.5


def test_torchvision_can_be_imported():
    code = 'import mmrla, torchvision.transforms, torchvision.models; print("fine")'
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == 'fine', result.stderr
