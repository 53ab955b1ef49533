"""Download a file over http(s): with a time-out, a progress bar, and resumed when interrupted."""
import http.client
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Dict, Optional
from urllib.error import HTTPError, URLError

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .writing import PARTIAL, sync_folder

CHUNK = 1 << 20
# A connection that delivers nothing for so many seconds is given up.
TIMEOUT = 30
ATTEMPTS = 5
# Errors of a connection that may work when tried again.
BROKEN = (URLError, TimeoutError, ConnectionError, http.client.HTTPException)


class _IncompleteError(ConnectionError):
    """The connection ended before the whole file arrived."""


def progress_bar(is_shown: Optional[bool] = None) -> Progress:
    """A bar for bytes on stderr, by default only on a terminal."""
    is_shown = sys.stderr.isatty() if is_shown is None else is_shown
    return Progress(TextColumn('{task.description}'), BarColumn(), DownloadColumn(),
                    TransferSpeedColumn(), TimeRemainingColumn(),
                    console=Console(stderr=True), disable=not is_shown)


def download(url: str, target: Path, progress: Optional[bool] = None,
             timeout: float = TIMEOUT, attempts: int = ATTEMPTS) -> None:
    """Download a file; it appears under its name when it is complete.

    An interrupted transfer is resumed from the bytes that arrived, provided that
    the server confirms that the file is unchanged.

    Args:
        url: The address.
        target: The local file.
        progress: Whether to show a progress bar. By default on a terminal.
        timeout: Seconds without a byte after which a connection is given up.
        attempts: How many connections to try.

    Raises:
        OSError: The error of the last attempt.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(PARTIAL.format(name=target.name, pid=os.getpid()))
    transfer = _Transfer(url, partial, timeout)
    try:
        with progress_bar(progress) as bar:
            task = bar.add_task(target.name, total=None)
            _with_retries(transfer, attempts, lambda: bar.update(
                task, completed=transfer.received, total=transfer.total))
        os.replace(partial, target)
        sync_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _with_retries(transfer: '_Transfer', attempts: int, update) -> None:
    """Run a transfer; each attempt that brought no byte counts."""
    failures = 0
    while True:
        before = transfer.received
        try:
            return transfer.run(update)
        except HTTPError:
            raise  # the server answered
        except BROKEN as error:
            failures = 0 if transfer.received > before else failures + 1
            # A first connection that fails is not retried: without a network the error is final.
            if failures >= attempts or transfer.received == 0:
                raise error if isinstance(error, OSError) else ConnectionError(str(error)) from None
            time.sleep(min(2**failures, 10))


class _Transfer:
    """The bytes of one file, over as many connections as it takes.

    Args:
        url: The address.
        partial: The file that receives the bytes.
        timeout: Seconds without a byte after which a connection is given up.

    Attributes:
        received: How many bytes have arrived.
        total: How many bytes the file has, if the server says so.
    """

    def __init__(self, url: str, partial: Path, timeout: float) -> None:
        self.url, self.partial, self.timeout = url, partial, timeout
        self.received = 0
        self.total: Optional[int] = None
        self._version: Optional[str] = None

    def _headers(self) -> Dict[str, str]:
        headers = {'User-Agent': 'mmrla'}
        if self.received and self._version:
            headers.update({'Range': f'bytes={self.received}-', 'If-Range': self._version})
        return headers

    def run(self, update) -> None:
        """Receive the rest of the file over one connection."""
        request = urllib.request.Request(self.url, headers=self._headers())
        with urllib.request.urlopen(request, timeout=self.timeout) as response:
            if response.status != 206:  # the whole file
                self.received = 0
            length = response.headers.get('Content-Length')
            self.total = None if length is None else self.received + int(length)
            self._version = response.headers.get('ETag') or response.headers.get('Last-Modified')
            with self.partial.open('ab' if self.received else 'wb') as file:
                while block := response.read1(CHUNK):  # what has arrived so far
                    file.write(block)
                    self.received += len(block)
                    update()
        if self.total is not None and self.received < self.total:
            raise _IncompleteError(f'{self.received} of {self.total} bytes arrived')
