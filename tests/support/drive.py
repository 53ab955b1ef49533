"""A local http server that answers as Google Drive does."""
import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

from requests.adapters import HTTPAdapter

CONFIRM = """<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head>
<body>
<p class="uc-warning-subcaption">Google Drive can't scan this file for viruses.</p>
<form id="download-form" action="https://drive.usercontent.google.com/download" method="get"><input
 type="submit" value="Download anyway"/><input type="hidden" name="id" value="{id}"><input
 type="hidden" name="export" value="download"><input type="hidden" name="confirm" value="t"><input
 type="hidden" name="uuid" value="7f3c"></form></body></html>""".replace('<input\n', '<input')
QUOTA = ('<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>'
         '<p class="uc-error-caption">Sorry, you can&#39;t view or download this file at this '
         'time.</p><p class="uc-error-subcaption">Too many users have viewed or downloaded this '
         'file recently. Please try accessing the file again later.</p></body></html>')
LOGIN = '<!doctype html><html><body><form action="/signin"></form>Sign in to continue</body></html>'


class Drive(BaseHTTPRequestHandler):
    """The answers of Google Drive; the class attributes are its state.

    Attributes:
        content: The bytes of the file.
        version: The ``Last-Modified`` of the file, which changes with its content.
        page: A page that is sent instead of the file: ``QUOTA``, ``LOGIN`` or other HTML.
        page_headers: Additional headers of that page.
        status: The status of all pages.
        is_large: Whether Google asks for a confirmation before it sends the file.
        confirms: Whether the confirmation is accepted.
        limit: How many bytes of the file a connection sends before it breaks off.
        limit_after: The limit of a connection that resumes a download.
        is_steady: Whether the file stays the same; if not, every answer has another version.
        has_ranges: Whether a download can be resumed.
        paths: The hosts and paths that were asked for.
        starts: The first byte of each transfer of the file.
    """
    content = b''
    version = 'Wed, 01 Sep 2021 10:00:00 GMT'
    page = None
    page_headers = {}
    is_large, confirms, has_ranges = True, True, True
    is_steady = True
    limit, limit_after = 10**9, None
    status = 200

    def do_GET(self):  # noqa: N802
        url = urlparse(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        host = self.headers['X-Host']
        self.paths.append(host + url.path)
        if host == 'drive.google.com':
            self.redirect(f'https://drive.usercontent.google.com/download?id={query["id"]}'
                          '&export=download')
        elif self.page is not None:
            self.send_page(self.page, self.page_headers)
        elif self.is_large and not (query.get('confirm') == 't' and self.confirms):
            self.send_page(CONFIRM.format(id=query['id']))
        else:
            self.send_file()

    def redirect(self, location):
        self.send_response(303)
        self.send_header('Location', location)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def send_page(self, text, headers={}):
        self.send_response(self.status)
        self.send_header('Content-Type', 'text/html; charset=utf-8')
        self.send_header('Content-Length', str(len(text.encode())))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def first_byte(self):
        asked = re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range', ''))
        is_same = self.is_steady and self.headers.get('If-Range') == self.version
        return int(asked[1]) if asked and is_same and self.has_ranges else 0

    def send_file(self):
        first, size = self.first_byte(), len(self.content)
        if first >= size:
            return self.send_error(416)
        self.send_response(206 if first else 200)
        self.send_header('Content-Type', 'application/octet-stream')
        self.send_header('Content-Disposition', 'attachment; filename="published.pth"')
        self.send_header('Last-Modified', self.version)
        self.send_header('Content-Length', str(size - first))
        if first:
            self.send_header('Content-Range', f'bytes {first}-{size - 1}/{size}')
        self.end_headers()
        self.starts.append(first)
        with contextlib.suppress(ConnectionError):  # gdown closes a response that it only asks for
            self.wfile.write(self.content[first:][:self.limit_of(first)])

    def limit_of(self, first):
        return self.limit if not first or self.limit_after is None else self.limit_after

    @classmethod
    def resumed(cls):
        """The first bytes of the transfers that resumed a download."""
        return [first for first in cls.starts if first]

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serve_drive(monkeypatch):
    """Run the server, and send the requests for Google's hosts to it; its handler class."""
    handler = type('Handler', (Drive,), dict(paths=[], starts=[]))
    send = HTTPAdapter.send

    def send_to_server(adapter, request, **kwargs):
        url = urlparse(request.url)
        assert url.hostname.endswith('.google.com'), url.hostname
        local = request.copy()
        local.url = url._replace(scheme='http', netloc=f'127.0.0.1:{server.server_port}').geturl()
        local.headers['X-Host'] = url.hostname
        response = send(adapter, local, **kwargs)
        response.url, response.request = request.url, request
        return response

    monkeypatch.setattr(HTTPAdapter, 'send', send_to_server)
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield handler
        server.shutdown()
