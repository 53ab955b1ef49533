"""Downloads: resumed when interrupted, given up when they stall."""
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

import pytest

from mmrla.weights import download

CONTENT = bytes(range(256)) * 40


class Unreliable(BaseHTTPRequestHandler):
    """Sends at most ``limit`` bytes per connection, then closes it or stalls."""
    limit, stalls, version, ranges = 10**9, False, '"1"', None

    def do_GET(self):  # noqa: N802
        first = 0
        asked = self.headers.get('Range')
        if asked and self.headers.get('If-Range') == self.version:
            first = int(asked.removeprefix('bytes=').removesuffix('-'))
        type(self).ranges.append(first)
        self.send_response(206 if first else 200)
        self.send_header('Content-Length', str(len(CONTENT) - first))
        self.send_header('ETag', self.version)
        self.end_headers()
        self.wfile.write(CONTENT[first:first + self.limit])
        self.wfile.flush()
        if self.stalls:
            stop.wait(20)

    def log_message(self, *_):
        pass


stop = threading.Event()


@pytest.fixture
def serve():
    """Start a server with some behaviour; its address and the ranges that were asked for."""
    servers = []

    def start(**behaviour):
        handler = type('Handler', (Unreliable,), dict(behaviour, ranges=[]))
        server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f'http://127.0.0.1:{server.server_port}/file.pth', handler.ranges

    stop.clear()
    yield start
    stop.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(download.time, 'sleep', lambda seconds: None)


@pytest.mark.parametrize('stalls', [False, True])
def test_an_interrupted_download_is_resumed(serve, tmp_path, stalls):
    url, ranges = serve(limit=4000, stalls=stalls)
    download.download(url, tmp_path / 'file.pth', timeout=0.3)
    assert (tmp_path / 'file.pth').read_bytes() == CONTENT
    assert ranges == [0, 4000, 8000]
    assert list(tmp_path.iterdir()) == [tmp_path / 'file.pth']


def test_a_file_that_changed_meanwhile_is_downloaded_from_the_start(serve, tmp_path, monkeypatch):
    url, ranges = serve(limit=4000)
    versions = iter(['"1"', '"2"', '"2"', '"2"'])
    original = Unreliable.do_GET

    def do_get(handler):
        handler.version = next(versions)
        original(handler)

    monkeypatch.setattr(Unreliable, 'do_GET', do_get)
    download.download(url, tmp_path / 'file.pth', timeout=5)
    assert (tmp_path / 'file.pth').read_bytes() == CONTENT
    assert ranges == [0, 0, 4000, 8000]


def test_a_download_that_never_delivers_is_given_up(serve, tmp_path):
    url, _ = serve(limit=0, stalls=True)
    with pytest.raises(OSError):
        download.download(url, tmp_path / 'file.pth', timeout=0.2)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_server_is_not_retried(tmp_path, serve, monkeypatch):
    url, ranges = serve()
    monkeypatch.setattr(Unreliable, 'do_GET', lambda handler: (
        handler.ranges.append(-1), handler.send_error(404)))
    with pytest.raises(HTTPError, match='404'):
        download.download(url, tmp_path / 'file.pth')
    assert ranges == [-1]
