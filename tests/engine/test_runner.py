"""The runner: what it adds to mmengine's, through mmengine's own interfaces."""
import io

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import BaseStorageBackend, get_file_backend, register_backend
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmrla.engine import RLARunner
from mmrla.engine import runner as runner_module
from mmrla.models import RLAResNet
from mmrla.weights.errors import CheckpointError, SaveError
from support.runners import make_runner

SMALL = dict(depth=18, base_channels=8, norm_eval=False)


def test_mmdets_tools_find_the_runner_by_its_name():
    assert RUNNERS.get('RLARunner') is RLARunner


def wrapper_cfg(cfg, device, monkeypatch, continuation=None):
    """What mmengine's runner gets to wrap a model."""
    seen = []
    monkeypatch.setattr(runner_module, 'get_device', lambda: device)
    monkeypatch.setattr(Runner, 'wrap_model', lambda self, cfg, model: seen.append(cfg))
    distributed = type('Distributed', (RLARunner,), dict(
        distributed=True, cfg=Config(), continuation=continuation, __init__=lambda self: None))
    distributed().wrap_model(cfg, nn.Linear(1, 1))
    return seen[0]


def test_ddp_gets_no_device_numbers_without_a_gpu(monkeypatch):
    assert 'device_ids' not in wrapper_cfg(None, 'cuda', monkeypatch)
    assert wrapper_cfg(None, 'cpu', monkeypatch)['device_ids'] is None


def test_ddp_gets_the_buckets_of_the_interrupted_run(monkeypatch):
    interrupted = dict(gradient_order=['weight', 'bias'])
    for cfg in (None, dict(static_graph=True)):
        found = wrapper_cfg(cfg, 'cuda', monkeypatch, interrupted)
        assert found['type'] == 'RepeatableDataParallel'
        assert found['gradient_order'] == ['weight', 'bias']


def test_a_wrapper_of_ones_own_gets_what_its_config_says(monkeypatch):
    cfg = dict(type='MMFullyShardedDataParallel', use_orig_params=True)
    assert wrapper_cfg(cfg, 'cuda', monkeypatch, dict(gradient_order=['bias'])) == cfg


def test_an_unwritable_work_dir_raises_with_the_fix(tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SaveError, match=f'{tmp_path}/file/run cannot be written .*--work-dir'):
        make_runner(nn.Linear(1, 1), tmp_path / 'file/run', monkeypatch)


def test_hooks_see_a_checkpoint_under_the_names_of_the_model(tmp_path, monkeypatch, randomise):
    model = nn.Module()
    model.backbone = RLAResNet(**SMALL, rla=dict(channels=4))
    plain = randomise(RLAResNet(**SMALL, rla=None)).state_dict()
    torch.save(plain, tmp_path / 'plain.pth')  # a bare backbone, as torchvision's
    runner = make_runner(model, tmp_path, monkeypatch)
    seen = {}
    monkeypatch.setattr(runner, 'call_hook', lambda name, **kwargs: seen.update({name: kwargs}))
    runner.load_checkpoint(str(tmp_path / 'plain.pth'))
    state = seen['after_load_checkpoint']['checkpoint']['state_dict']
    assert set(state) == set(model.state_dict())
    assert torch.equal(model.backbone.conv1.weight, plain['conv1.weight'])


class Storage(BaseStorageBackend):
    """Object storage in memory, which may damage what it stores."""
    stored, is_broken = {}, False

    def put(self, obj, filepath):
        self.stored[filepath] = bytes(obj)[:500] if self.is_broken else bytes(obj)

    def get(self, filepath):
        return memoryview(self.stored[filepath])

    def get_text(self, filepath):
        raise NotImplementedError

    def join_path(self, folder, *names):
        return '/'.join([folder, *names])


def test_a_checkpoint_in_object_storage_is_read_back(tmp_path, monkeypatch):
    register_backend('memory', Storage, prefixes='memory', force=True)

    def save(self, out_dir, filename, *args, backend_args=None, **kwargs):
        buffer = io.BytesIO()
        torch.save(dict(a=torch.ones(300)), buffer)
        path = f'{out_dir}/{filename}'
        get_file_backend(path, backend_args=backend_args).put(buffer.getvalue(), path)

    monkeypatch.setattr(Runner, 'save_checkpoint', save)
    runner = make_runner(nn.Linear(1, 1), tmp_path, monkeypatch)
    runner.save_checkpoint('memory://bucket', 'epoch_1.pth')
    assert 'memory://bucket/epoch_1.pth' in Storage.stored
    monkeypatch.setattr(Storage, 'is_broken', True)
    with pytest.raises(SaveError, match='memory://bucket/epoch_2.pth .*just written'):
        runner.save_checkpoint('memory://bucket', 'epoch_2.pth')


def test_a_checkpoint_on_a_disk_is_written_atomically(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Runner, 'save_checkpoint', lambda self, *args, backend_args=None, **kwargs:
                        seen.append(backend_args))
    runner = make_runner(nn.Linear(1, 1), tmp_path, monkeypatch)
    runner.save_checkpoint(str(tmp_path), 'epoch_1.pth')
    assert seen == [dict(backend='atomic')]


def test_a_model_without_rla_loads_as_with_mmengine(tmp_path, monkeypatch):
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.save(dict(state_dict={f'module.{name}': value for name, value in
                                source.state_dict().items()}), tmp_path / 'linear.pth')
    make_runner(target, tmp_path, monkeypatch).load_checkpoint(str(tmp_path / 'linear.pth'))
    assert torch.equal(source.weight, target.weight)


def test_the_config_text_in_a_checkpoint_is_never_run(tmp_path, monkeypatch):
    """mmengine's ``resume`` runs ``meta['config']`` as Python."""
    trace = tmp_path / 'it-ran'
    model = nn.Linear(1, 1)
    torch.save(dict(
        state_dict=model.state_dict(), message_hub={}, meta=dict(
            epoch=0, iter=0, config=f'open({str(trace)!r}, "w")')), tmp_path / 'epoch_1.pth')
    runner = make_runner(model, tmp_path, monkeypatch)
    runner._resume = True
    checkpoint = runner.load_checkpoint(str(tmp_path / 'epoch_1.pth'))
    assert 'config' not in checkpoint['meta'] and not trace.exists()


def test_everything_in_a_run_is_read_safely(tmp_path, monkeypatch, code):
    """Also what other modules load, such as the teacher of a distillation."""
    from mmengine.runner import load_checkpoint
    make_runner(nn.Linear(1, 1), tmp_path, monkeypatch)
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    torch.save(dict(state_dict={}, hook=code[0]), tmp_path / 'teacher.pth')
    with pytest.raises(CheckpointError, match='refused'):
        load_checkpoint(nn.Linear(1, 1), str(tmp_path / 'teacher.pth'))
    assert not code[1].exists()
