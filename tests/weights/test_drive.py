"""Checkpoints on Google Drive, from a local server that answers as Google Drive does."""
import hashlib
import io
import logging
import random
import sys
import threading

import pytest
import requests
import torch
from mmengine.logging import MMLogger
from mmengine.runner import CheckpointLoader

from mmrla.weights import digests, drive, load_checkpoint
from mmrla.weights.authors import AUTHORS_FILES
from mmrla.weights.errors import CheckpointError
from support.drive import LOGIN, QUOTA, serve_drive

NAME = 'authors://retinanet_r50rla_fpn_1x_coco_379'
FILE = AUTHORS_FILES['retinanet_r50rla_fpn_1x_coco_379']
# gdown keeps whole chunks only; LIMIT breaks off in the second one.
CHUNK, LIMIT = 512 * 1024, 600_000
PAGE = f'https://drive.google.com/file/d/{FILE.drive_id}/view'


def checkpoint_bytes(value, is_zip=False):
    """A checkpoint; by default in the format of torch < 1.6, which has no checksums."""
    file = io.BytesIO()
    torch.save(dict(state_dict=dict(weight=torch.full((400_000,), float(value)))), file,
               _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


@pytest.fixture(autouse=True)
def cached(tmp_path, monkeypatch):
    """An empty cache, no pauses between attempts; the place of the file in the cache."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr(random, 'uniform', lambda low, high: 0)  # gdown's pauses
    digests._log_once.cache_clear()
    return tmp_path / 'hub/checkpoints' / FILE.file_name


@pytest.fixture
def server(monkeypatch):
    with serve_drive(monkeypatch) as handler:
        handler.content = checkpoint_bytes(1)
        yield handler


@pytest.fixture
def logged(monkeypatch):
    """The lines of the log."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def value(checkpoint):
    return checkpoint['state_dict']['weight'].unique().item()


def names(folder):
    return sorted(path.name for path in folder.glob('*') if not path.name.endswith('.lock'))


def failure(name=NAME):
    """The message of a load that must fail, which is one line."""
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(name)
    assert '\n' not in str(error.value)
    assert name in str(error.value)
    return str(error.value)


def assert_says_what_to_do(message, cached):
    assert PAGE in message and message.endswith(f'save the file as {cached}')


@pytest.mark.parametrize('is_large', [True, False], ids=['confirm page', 'redirect'])
def test_a_file_is_downloaded_once_and_its_sha256_is_remembered(server, cached, is_large, logged):
    server.is_large = is_large
    assert value(load_checkpoint(NAME)) == 1
    pages = ['drive.google.com/uc', *['drive.usercontent.google.com/download'] * (1 + is_large)]
    assert server.paths == 2 * pages  # whether there is a file, then the file
    digest = hashlib.sha256(server.content).hexdigest()
    note = cached.with_name(f'{cached.name}.sha256')
    assert note.read_text() == f'{digest}  {cached.name}\n'
    assert names(cached.parent) == [cached.name, note.name]
    assert logged[-1] == f'{NAME}: sha256 {digest}, remembered in {note}'
    assert value(load_checkpoint(NAME)) == 1
    assert server.paths == 2 * pages, 'the second time the file comes from the cache'
    assert logged[-1] == f'{NAME}: sha256 {digest}, as at the first use'


def test_any_id_works_with_mmengines_own_functions(server, cached):
    loaded = CheckpointLoader.load_checkpoint(f'gdrive://{FILE.drive_id}', 'cpu')
    assert value(loaded) == 1
    assert (cached.parent / f'gdrive_{FILE.drive_id}.pth').is_file()


@pytest.mark.parametrize('load', [load_checkpoint, CheckpointLoader.load_checkpoint])
@pytest.mark.parametrize('link', [
    PAGE, f'{PAGE}?usp=sharing', FILE.url, f'https://drive.google.com/open?id={FILE.drive_id}',
    f'https://drive.google.com/uc?export=download&id={FILE.drive_id}'])
def test_an_address_on_google_drive_works_like_the_name_of_the_file(server, cached, link, load):
    assert value(load(link, 'cpu')) == 1
    assert cached.is_file()


def test_an_address_of_another_file_is_kept_by_its_id(server, cached):
    other = FILE.drive_id[::-1]
    assert value(load_checkpoint(PAGE.replace(FILE.drive_id, other))) == 1
    assert names(cached.parent)[0] == f'gdrive_{other}.pth'


def test_a_plain_download_of_the_address_in_the_model_index_is_the_file(server):
    """mim reads it with requests, and names the file after the last part of the address."""
    assert requests.get(FILE.url, stream=True).content == server.content
    assert FILE.url.rpartition('/')[2] == FILE.file_name


def test_a_used_up_quota_is_explained(server, cached):
    server.page = QUOTA
    message = failure()
    assert "Google's download quota for this file is used up" in message
    assert_says_what_to_do(message, cached)
    assert names(cached.parent) == []


@pytest.mark.parametrize('headers', [
    {}, {'Content-Disposition': 'attachment; filename="published.pth"'}])
def test_a_web_page_instead_of_the_file_is_not_kept(server, cached, headers):
    server.page, server.page_headers = LOGIN, headers
    message = failure()
    assert 'Google Drive sent a web page instead of the file' in message
    assert_says_what_to_do(message, cached)
    assert names(cached.parent) == []
    server.page = None
    assert value(load_checkpoint(NAME)) == 1


def test_an_error_of_the_server_is_named(server, cached):
    server.page, server.status = 'no', 403
    server.page_headers = {'Content-Disposition': 'attachment; filename="published.pth"'}
    message = failure()
    assert 'Google Drive answered 403 Forbidden' in message
    assert_says_what_to_do(message, cached)


def test_an_interrupted_download_is_resumed(server, cached):
    server.limit = LIMIT
    assert value(load_checkpoint(NAME)) == 1
    assert server.resumed() == [CHUNK, 2 * CHUNK]
    assert cached.read_bytes() == server.content


@pytest.mark.parametrize('cause', ['no ranges', 'another file', 'no more bytes'])
def test_a_download_that_cannot_be_resumed_is_explained(server, cached, cause, monkeypatch):
    monkeypatch.setattr(drive, 'RETRIES', 2)
    server.limit, server.is_steady = LIMIT, cause != 'another file'
    server.has_ranges = cause != 'no ranges'
    if cause == 'no more bytes':
        server.limit_after = 0
    message = failure()
    assert f'the connection broke off after {CHUNK} of {len(server.content)} bytes' in message
    assert_says_what_to_do(message, cached)
    assert names(cached.parent) == []


def test_the_rest_of_a_killed_download_is_removed(server, cached):
    rest = cached.with_name(f'.{cached.name}.part')
    rest.mkdir(parents=True)
    (rest / f'{cached.name}abcdefgh.part').write_bytes(b'old')
    assert value(load_checkpoint(NAME)) == 1
    assert names(cached.parent) == [cached.name, f'{cached.name}.sha256']


def test_other_users_of_a_shared_cache_can_read_the_file(server, cached):
    load_checkpoint(NAME)
    (cached.parent / 'usual').touch()
    assert cached.stat().st_mode == (cached.parent / 'usual').stat().st_mode


def test_without_a_network_the_error_comes_at_once(cached, monkeypatch):
    attempts = []
    send = requests.adapters.HTTPAdapter.send

    def unreachable(adapter, request, **kwargs):
        attempts.append(request.url)
        request.url = 'http://127.0.0.1:1/'  # nothing listens there
        return send(adapter, request, **kwargs)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, 'send', unreachable)
    message = failure()
    assert attempts == [f'https://drive.google.com/uc?id={FILE.drive_id}']
    assert 'the connection to Google Drive failed: [Errno 111] Connection refused' in message
    assert_says_what_to_do(message, cached)
    assert names(cached.parent) == []


def test_a_confirmation_that_is_never_accepted_ends(server, cached, monkeypatch):
    server.confirms = False
    monkeypatch.setattr(drive, 'PATIENCE', 0.5)
    message = failure()
    assert 'Google Drive offered no file within 0.5 seconds' in message
    assert_says_what_to_do(message, cached)


def test_a_cached_file_that_was_changed_is_reported(server, cached):
    load_checkpoint(NAME)
    changed = checkpoint_bytes(2)
    cached.write_bytes(changed)
    note = cached.with_name(f'{cached.name}.sha256')
    message = failure()
    for content in (server.content, changed):
        assert hashlib.sha256(content).hexdigest() in message
    assert f'Delete {note} to accept the new file' in message
    note.unlink()
    assert value(load_checkpoint(NAME)) == 2


def test_another_file_under_the_same_name_is_reported(server, cached):
    load_checkpoint(NAME)
    first, server.content = server.content, checkpoint_bytes(2)
    cached.unlink()
    assert 'is not the file that was used before' in failure()
    cached.unlink()
    server.content = first
    assert value(load_checkpoint(NAME)) == 1


def test_a_downloaded_file_that_carries_code_is_refused(server, cached, malicious):
    path, trace = malicious
    server.content = path.read_bytes()
    assert 'refused' in failure()
    assert names(cached.parent) == [], 'it must not stay in the cache'
    assert not trace.exists()


def test_a_file_that_was_downloaded_by_hand_needs_no_gdown(cached, monkeypatch):
    monkeypatch.setitem(sys.modules, 'gdown', None)
    cached.parent.mkdir(parents=True)
    cached.write_bytes(checkpoint_bytes(3, is_zip=True))
    assert value(load_checkpoint(NAME)) == 3


@pytest.mark.parametrize('version', [None, '5.2.0'])
def test_a_missing_or_old_gdown_is_explained(cached, version, monkeypatch):
    old = version and type(sys)('gdown')
    if version:
        old.__version__ = version
    monkeypatch.setitem(sys.modules, 'gdown', old)
    message = failure()
    assert "run: pip install 'gdown>=6.5'" in message
    assert ('gdown 5.2.0 is too old' if version else 'gdown is not installed') in message
    assert_says_what_to_do(message, cached)


def test_two_downloads_at_once_are_one(server, cached):
    server.limit = LIMIT
    results = []
    threads = [threading.Thread(target=lambda: results.append(
        drive.download_from_drive(FILE.drive_id, cached))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [False, True]
    assert server.resumed() == [CHUNK, 2 * CHUNK]
    assert cached.read_bytes() == server.content


@pytest.mark.parametrize('name, hint', [
    ('authors://faster_rcnn_r50rla_fpn_1x_coco_338',
     'did you mean faster_rcnn_r50rla_fpn_1x_coco_388'),
    ('authors://x', 'the names are resnet50_rla_2283, '),
    ('gdrive://short', 'the part between /d/ and /view'),
    (f'gdrive://{PAGE}', 'the part between /d/ and /view'),
    ('https://drive.google.com/drive/folders/1cetP1SdOiwznLxlBUaHG8Q8c4RIwToWW',
     'is not the address of a file on Google Drive, such as')])
def test_a_wrong_name_is_explained(name, hint):
    assert hint in failure(name)
