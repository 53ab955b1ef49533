"""Reading files: weights alone, and one clear line for a bad one."""
import functools
import hashlib
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import URLError

import mmengine.runner.checkpoint as mmengine_checkpoint
import pytest
import torch
from mmengine.runner import CheckpointLoader, load_checkpoint
from safetensors.torch import save_file

from mmrla.weights import reading
from mmrla.weights.reading import CheckpointError, source_of


@pytest.fixture
def malicious(tmp_path, code):
    """A checkpoint that carries code, and the file that the code would make."""
    thing, trace = code
    torch.save(dict(state_dict={}, message_hub=thing), tmp_path / 'malicious.pth')
    return tmp_path / 'malicious.pth', trace


@pytest.mark.parametrize('load', [
    lambda path: CheckpointLoader.load_checkpoint(path, 'cpu'),
    lambda path: load_checkpoint(torch.nn.Linear(1, 1), path),
    lambda path: reading.load_from_local(path),
], ids=['mmengine', 'load_checkpoint', 'local'])
def test_a_checkpoint_that_carries_code_is_refused(malicious, load):
    path, trace = malicious
    with pytest.raises(CheckpointError) as error:
        load(str(path))
    assert str(path) in str(error.value) and 'code' in str(error.value)
    assert 'weights_only' not in str(error.value), 'this advises to run the code'
    assert not trace.exists()


def test_a_download_that_carries_code_is_refused(malicious, tmp_path, monkeypatch):
    path, trace = malicious
    monkeypatch.setattr(torch.hub, 'download_url_to_file',
                        lambda url, target, *_, **__: os.link(path, target))
    with pytest.raises(CheckpointError):
        mmengine_checkpoint.load_url(
            'https://host.invalid/file.pth', model_dir=str(tmp_path / 'hub'))
    assert not trace.exists()


def test_without_a_network_the_error_says_where_the_file_goes(monkeypatch, tmp_path):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))

    def unreachable(*_, **__):
        raise URLError('no route to host')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', unreachable)
    with pytest.raises(CheckpointError) as error:
        CheckpointLoader.load_checkpoint('torchvision://resnet50', 'cpu')
    assert 'no route to host' in str(error.value)
    assert f'{tmp_path}/hub/checkpoints/resnet50-0676ba61.pth' in str(error.value)


@pytest.mark.parametrize('content', [b'', b'hello, I am a text file', bytes(range(256))])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / 'not_a_checkpoint.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match='cannot be read') as error:
        reading.load_from_local(str(path))
    assert str(path) in str(error.value)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / 'truncated.pth'
    torch.save(dict(weight=torch.randn(1000)), path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match='truncated.pth cannot be read'):
        reading.load_from_local(str(path))


@pytest.mark.parametrize('name, reason', [('missing.pth', 'does not exist'), ('', 'not a file')])
def test_a_path_without_a_file_is_named(tmp_path, name, reason):
    with pytest.raises(CheckpointError, match=reason):
        reading.load_from_local(str(tmp_path / name))


@pytest.mark.parametrize('scheme', ['', 'file.pth', 's3://bucket/'])
def test_no_setting_of_torch_makes_it_run_code(malicious, scheme, monkeypatch):
    path, trace = malicious
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    name = str(path)
    if scheme == 's3://bucket/':
        backend = type('Backend', (), dict(get=lambda self, name: path.read_bytes()))()
        monkeypatch.setattr(reading, 'get_file_backend', lambda *_, **__: backend)
        name = 's3://bucket/malicious.pth'
    elif scheme == 'file.pth':  # a file that mmengine knows by a name
        name = 'open-mmlab://mine'
        monkeypatch.setattr(mmengine_checkpoint, 'get_external_models',
                            lambda: dict(mine=str(path)))
    with pytest.raises(CheckpointError, match='refused') as error:
        CheckpointLoader.load_checkpoint(name, 'cpu')
    assert name in str(error.value)
    assert not trace.exists()


def test_object_storage_gives_the_same_weights(tmp_path, monkeypatch):
    state = dict(weight=torch.randn(3, 2))
    save_file(state, tmp_path / 'a.safetensors')
    backend = type('Backend', (), dict(
        get=lambda self, name: (tmp_path / 'a.safetensors').read_bytes()))()
    monkeypatch.setattr(reading, 'get_file_backend', lambda *_, **__: backend)
    loaded = CheckpointLoader.load_checkpoint('s3://bucket/a.safetensors', 'cpu')['state_dict']
    assert torch.equal(loaded['weight'], state['weight'])
    assert source_of(loaded) == 's3://bucket/a.safetensors'
    with pytest.raises(CheckpointError, match='its name says 0123abcd'):
        CheckpointLoader.load_checkpoint('s3://bucket/a-0123abcd.safetensors', 'cpu')


def test_safetensors_are_known_by_their_content(tmp_path):
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.bin', metadata=dict(modules='foreign'))
    loaded = CheckpointLoader.load_checkpoint(
        str(tmp_path / 'a.bin'), lambda storage, location: storage)
    assert torch.equal(loaded['state_dict']['weight'], torch.ones(2))


def test_the_name_of_the_file_is_not_saved_again(tmp_path):
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / 'first.pth')
    loaded = CheckpointLoader.load_checkpoint(str(tmp_path / 'first.pth'), 'cpu')
    assert source_of(loaded) == str(tmp_path / 'first.pth')
    torch.save(loaded, tmp_path / 'second.pth')
    assert b'first.pth' not in (tmp_path / 'second.pth').read_bytes()
    assert torch.load(tmp_path / 'second.pth')._metadata == torch.nn.Linear(
        1, 1).state_dict()._metadata


def named_by_content(folder, stem='weights', suffix='.pth'):
    path = folder / f'{stem}{suffix}'
    torch.save(dict(weight=torch.ones(2)), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.rename(folder / f'{stem}-{digest}{suffix}')


def test_a_file_is_compared_with_the_sha256_in_its_name(tmp_path):
    path = named_by_content(tmp_path)
    assert torch.equal(reading.load_from_local(str(path))['weight'], torch.ones(2))
    wrong = path.rename(tmp_path / 'weights-0123abcd.pth')
    with pytest.raises(CheckpointError, match='its name says 0123abcd') as error:
        reading.load_from_local(str(wrong))
    assert str(wrong) in str(error.value)
    archive = wrong.rename(tmp_path / 'weights-0123abcd.pth.tar')
    with pytest.raises(CheckpointError, match='its name says 0123abcd'):
        reading.load_from_local(str(archive))
    dated = archive.rename(tmp_path / 'weights-20240131.pth')
    assert 'weight' in reading.load_from_local(str(dated)), 'a date is not a sha256'


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


def test_a_url_is_downloaded_once_and_checked(server, tmp_path, monkeypatch):
    folder, address = server
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    good = named_by_content(folder)
    for _ in range(2):  # the second time from the cache
        loaded = CheckpointLoader.load_checkpoint(f'{address}/{good.name}', 'cpu')
        assert torch.equal(loaded['weight'], torch.ones(2))
        good.unlink(missing_ok=True)
    save_file(dict(weight=torch.zeros(3)), folder / 'plain.safetensors')
    loaded = CheckpointLoader.load_checkpoint(f'{address}/plain.safetensors?download=true', 'cpu')
    assert torch.equal(loaded['state_dict']['weight'], torch.zeros(3))
    (folder / 'page.pth').write_text('<html>please log in</html>')
    with pytest.raises(CheckpointError, match='page.pth cannot be read'):
        CheckpointLoader.load_checkpoint(f'{address}/page.pth', 'cpu')
    named_by_content(folder).rename(folder / 'page.pth')
    assert 'weight' in CheckpointLoader.load_checkpoint(f'{address}/page.pth', 'cpu'), (
        'the page must not stay in the cache')
    with pytest.raises(CheckpointError, match='cannot be downloaded .File not found'):
        CheckpointLoader.load_checkpoint(f'{address}/missing.pth', 'cpu')


def test_a_damaged_download_is_not_kept(tmp_path, monkeypatch):
    good = named_by_content(tmp_path)
    monkeypatch.setattr(torch.hub, 'download_url_to_file',
                        lambda url, target, **_: open(target, 'wb').write(b'half of it'))
    arguments = dict(url=f'https://host.invalid/{good.name}', model_dir=str(tmp_path / 'hub'))
    with pytest.raises(CheckpointError, match='Get it again'):
        reading.load_url(**arguments)
    monkeypatch.setattr(torch.hub, 'download_url_to_file',
                        lambda url, target, **_: os.link(good, target))
    assert 'weight' in reading.load_url(**arguments), 'the next try must download again'


def test_a_name_that_mmengine_does_not_know_is_named():
    with pytest.raises(CheckpointError, match='torchvision://resnet5O is not known'):
        CheckpointLoader.load_checkpoint('torchvision://resnet5O', 'cpu')


@pytest.mark.parametrize('content, text', [
    ([1, 2], 'holds a list'), (torch.ones(2), 'holds a Tensor'), ('text', 'holds a str'),
    ({1: torch.ones(2)}, 'holds no weights'), (dict(state_dict=None), 'holds no weights')])
def test_a_checkpoint_that_is_no_dict_of_weights_is_named(tmp_path, content, text):
    torch.save(content, tmp_path / 'odd.pth')
    with pytest.raises(CheckpointError, match=f'odd.pth {text}'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'odd.pth'), 'cpu')
