"""What the stack needs to work together."""
import os
import pickle
import subprocess
import sys
from urllib.error import URLError

import mmengine.runner.checkpoint as mmengine_checkpoint
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dist import utils as dist_utils
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader, Runner, load_checkpoint, save_checkpoint

from mmrla import compat


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f'touch {self.path}',)


@pytest.fixture
def malicious(tmp_path):
    """A checkpoint that carries code, and the file that the code would make."""
    path, trace = tmp_path / 'malicious.pth', tmp_path / 'it-ran'
    torch.save(dict(state_dict={}, message_hub=Malicious(trace)), path)
    return path, trace


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


@pytest.mark.parametrize('owner, name', [(os, 'system'), (HistoryBuffer, '__init__')])
def test_a_checkpoint_may_look_up_nothing_else(owner, name):
    with pytest.raises(pickle.UnpicklingError, match=name):
        compat._history_buffer_method(owner, name)


def test_names_that_numpy_1_wrote_can_be_read(tmp_path):
    plain = tmp_path / 'new.pth'
    torch.save(np.float64(0.5), plain, _use_new_zipfile_serialization=False)
    old = tmp_path / 'old.pth'
    data = plain.read_bytes()
    assert b'numpy._core.multiarray' in data
    old.write_bytes(data.replace(b'numpy._core.multiarray', b'numpy.core.multiarray'))
    assert CheckpointLoader.load_checkpoint(str(old), 'cpu') == 0.5


@pytest.mark.parametrize('load', [
    lambda path: CheckpointLoader.load_checkpoint(path, 'cpu'),
    lambda path: load_checkpoint(torch.nn.Linear(1, 1), path),
    lambda path: compat.load_from_local(path),
], ids=['mmengine', 'load_checkpoint', 'local'])
def test_a_checkpoint_that_carries_code_is_refused(malicious, load):
    path, trace = malicious
    with pytest.raises(pickle.UnpicklingError) as error:
        load(str(path))
    assert str(path) in str(error.value) and 'code' in str(error.value)
    assert 'weights_only' not in str(error.value), 'this advises to run the code'
    assert not trace.exists()


def test_a_download_that_carries_code_is_refused(malicious, tmp_path, monkeypatch):
    path, trace = malicious
    monkeypatch.setattr(torch.hub, 'download_url_to_file',
                        lambda url, target, *_, **__: os.link(path, target))
    with pytest.raises(pickle.UnpicklingError):
        mmengine_checkpoint.load_url(
            'https://host.invalid/file.pth', model_dir=str(tmp_path / 'hub'))
    assert not trace.exists()


def test_without_a_network_the_error_says_where_the_file_goes(monkeypatch, tmp_path):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))

    def unreachable(*_, **__):
        raise URLError('no route to host')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', unreachable)
    with pytest.raises(ConnectionError) as error:
        CheckpointLoader.load_checkpoint('torchvision://resnet50', 'cpu')
    assert 'no route to host' in str(error.value)
    assert f'{tmp_path}/hub/checkpoints/resnet50-0676ba61.pth' in str(error.value)


@pytest.mark.parametrize('content', [b'', b'hello, I am a text file', bytes(range(256))])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / 'not_a_checkpoint.pth'
    path.write_bytes(content)
    with pytest.raises((RuntimeError, pickle.UnpicklingError), match='cannot be read') as error:
        compat.load_from_local(str(path))
    assert str(path) in str(error.value)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / 'truncated.pth'
    torch.save(dict(weight=torch.randn(1000)), path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(RuntimeError, match='truncated.pth cannot be read'):
        compat.load_from_local(str(path))


@pytest.mark.parametrize('name, reason', [('missing.pth', 'does not exist'), ('', 'not a file')])
def test_a_path_without_a_file_is_named(tmp_path, name, reason):
    with pytest.raises(FileNotFoundError, match=reason):
        compat.load_from_local(str(tmp_path / name))


def test_a_second_application_changes_nothing():
    before = (Runner.wrap_model, dist_utils._init_dist_pytorch, mmengine_checkpoint.load_url)
    compat.apply()
    assert before == (Runner.wrap_model, dist_utils._init_dist_pytorch,
                      mmengine_checkpoint.load_url)


def test_torchvision_can_be_imported():
    code = 'import mmrla, torchvision.transforms, torchvision.models; print("fine")'
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == 'fine', result.stderr


def test_importing_mmrla_imports_neither_mmdet_nor_mmpretrain():
    code = ('import sys, mmrla; '
            'print([m for m in ("mmdet", "mmpretrain", "torchvision") if m in sys.modules])')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == '[]', result.stderr


def test_with_a_gpu_the_runner_wraps_as_it_always_did(monkeypatch):
    seen = []
    monkeypatch.setattr(compat, 'get_device', lambda: 'cuda')
    runner = type('FakeRunner', (), dict(distributed=True, cfg=Config()))()
    compat._wrap_without_device(lambda *args: seen.append(args), runner, None, 'model')
    assert seen == [(runner, None, 'model')]
    monkeypatch.setattr(compat, 'get_device', lambda: 'cpu')
    compat._wrap_without_device(lambda *args: seen.append(args), runner, None, 'model')
    assert seen[1][1]['device_ids'] is None
