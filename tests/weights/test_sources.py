"""Names of checkpoints: URLs, models of other packages, object storage."""
import functools
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import URLError

import mmengine.runner.checkpoint as mmengine_checkpoint
import pytest
import torch
from safetensors.torch import save_file

from mmrla.weights import load_checkpoint, sources
from mmrla.weights.errors import CheckpointError
from mmrla.weights.reading import source_of


def test_a_download_that_carries_code_is_refused(malicious, tmp_path, monkeypatch):
    path, trace = malicious
    (tmp_path / 'hub').mkdir()
    monkeypatch.setattr(sources, 'download', lambda url, target, *_: os.link(path, target))
    with pytest.raises(CheckpointError, match='refused'):
        sources.load_from_http('https://host.invalid/file.pth', model_dir=str(tmp_path / 'hub'))
    assert not trace.exists()


def test_without_a_network_the_error_says_where_the_file_goes(monkeypatch, tmp_path):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))

    def unreachable(*_, **__):
        raise URLError('no route to host')

    monkeypatch.setattr(sources, 'download', unreachable)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint('torchvision://resnet50')
    assert 'no route to host' in str(error.value)
    assert f'{tmp_path}/hub/checkpoints/resnet50-0676ba61.pth' in str(error.value)


@pytest.mark.parametrize('scheme', ['', 'file.pth', 's3://bucket/'])
def test_no_setting_of_torch_makes_it_run_code(malicious, scheme, monkeypatch):
    path, trace = malicious
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    name = str(path)
    if scheme == 's3://bucket/':
        backend = type('Backend', (), dict(get=lambda self, name: path.read_bytes()))()
        monkeypatch.setattr(sources, 'get_file_backend', lambda *_, **__: backend)
        name = 's3://bucket/malicious.pth'
    elif scheme == 'file.pth':  # a file that mmengine knows by a name
        name = 'open-mmlab://mine'
        monkeypatch.setattr(mmengine_checkpoint, 'get_external_models',
                            lambda: dict(mine=str(path)))
    with pytest.raises(CheckpointError, match='refused') as error:
        load_checkpoint(name)
    assert name in str(error.value)
    assert not trace.exists()


def test_object_storage_gives_the_same_weights(tmp_path, monkeypatch):
    state = dict(weight=torch.randn(3, 2))
    save_file(state, tmp_path / 'a.safetensors')
    backend = type('Backend', (), dict(
        get=lambda self, name: (tmp_path / 'a.safetensors').read_bytes()))()
    monkeypatch.setattr(sources, 'get_file_backend', lambda *_, **__: backend)
    loaded = load_checkpoint('s3://bucket/a.safetensors')['state_dict']
    assert torch.equal(loaded['weight'], state['weight'])
    assert source_of(loaded) == 's3://bucket/a.safetensors'
    with pytest.raises(CheckpointError, match='its name says 0123abcd'):
        load_checkpoint('s3://bucket/a-0123abcd.safetensors')


@pytest.fixture
def server(tmp_path):
    """An http server of a folder; the folder and its address."""
    folder = tmp_path / 'served'
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield folder, f'http://127.0.0.1:{http.server_port}'
        http.shutdown()


def test_a_url_is_downloaded_once_and_checked(server, tmp_path, monkeypatch, named_by_content):
    folder, address = server
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    good = named_by_content(folder)
    for _ in range(2):  # the second time from the cache
        loaded = load_checkpoint(f'{address}/{good.name}')
        assert torch.equal(loaded['weight'], torch.ones(2))
        good.unlink(missing_ok=True)
    save_file(dict(weight=torch.zeros(3)), folder / 'plain.safetensors')
    loaded = load_checkpoint(f'{address}/plain.safetensors?download=true')
    assert torch.equal(loaded['state_dict']['weight'], torch.zeros(3))
    (folder / 'page.pth').write_text('<html>please log in</html>')
    with pytest.raises(CheckpointError, match='page.pth cannot be read'):
        load_checkpoint(f'{address}/page.pth')
    named_by_content(folder).rename(folder / 'page.pth')
    assert 'weight' in load_checkpoint(f'{address}/page.pth'), (
        'the page must not stay in the cache')
    with pytest.raises(CheckpointError, match='cannot be downloaded .File not found'):
        load_checkpoint(f'{address}/missing.pth')


def test_a_damaged_download_is_not_kept(tmp_path, monkeypatch, named_by_content):
    good = named_by_content(tmp_path)
    (tmp_path / 'hub').mkdir()
    monkeypatch.setattr(sources, 'download',
                        lambda url, target, *_: target.write_bytes(b'half of it'))
    arguments = dict(filename=f'https://host.invalid/{good.name}', model_dir=str(tmp_path / 'hub'))
    with pytest.raises(CheckpointError, match='Download it again'):
        sources.load_from_http(**arguments)
    monkeypatch.setattr(sources, 'download', lambda url, target, *_: os.link(good, target))
    assert 'weight' in sources.load_from_http(**arguments), 'the next try must download again'


def test_a_name_that_mmengine_does_not_know_is_named():
    with pytest.raises(CheckpointError, match='torchvision://resnet5O is not known'):
        load_checkpoint('torchvision://resnet5O')


def test_read_safely_leaves_no_reader_of_mmengine(monkeypatch):
    """A name that only mmengine reads would run code, as onedl-mmengine does for every name."""
    loader = mmengine_checkpoint.CheckpointLoader
    monkeypatch.setattr(loader, '_schemes', dict(loader._schemes))  # restored after the test
    sources.read_safely()
    left = [name for name, function in loader._schemes.items()
            if function.__module__.startswith('mmengine')]
    assert not left, f'mmengine reads {left}'


@pytest.mark.parametrize('load', [
    lambda name: mmengine_checkpoint.CheckpointLoader.load_checkpoint(name, 'cpu'),
    lambda name: mmengine_checkpoint.load_checkpoint(torch.nn.Linear(1, 1), name)],
    ids=['CheckpointLoader', 'load_checkpoint'])
@pytest.mark.parametrize('way', ['path', 'http'])
def test_read_safely_closes_mmengines_own_functions(load, way, malicious, server, tmp_path,
                                                    monkeypatch):
    path, trace = malicious
    folder, address = server
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    monkeypatch.setattr(mmengine_checkpoint.CheckpointLoader, '_schemes', dict(
        mmengine_checkpoint.CheckpointLoader._schemes))  # restored after the test
    (folder / 'malicious.pth').write_bytes(path.read_bytes())
    sources.read_safely()
    with pytest.raises(CheckpointError, match='refused'):
        load(str(path) if way == 'path' else f'{address}/malicious.pth')
    assert not trace.exists()


def test_mmengines_own_functions_read_safetensors(tmp_path):
    save_file(dict(weight=torch.ones(1, 1), bias=torch.zeros(1)), tmp_path / 'a.safetensors')
    linear = torch.nn.Linear(1, 1)
    mmengine_checkpoint.load_checkpoint(linear, str(tmp_path / 'a.safetensors'))
    assert linear.weight == 1
