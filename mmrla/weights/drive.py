"""Download a file from Google Drive, through gdown.

gdown follows Google's confirmation page and redirects. This module adds what gdown does
not do: a file that appears when it is complete, one download at a time, a partial file
that cannot be resumed is discarded, and errors of one line.
"""
import os
import re
import shutil
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Callable, Optional

from filelock import FileLock
from mmengine.utils import digit_version

from .download import ATTEMPTS, TIMEOUT, progress_bar, with_retries
from .writing import sync_folder

GDOWN_VERSION = '6.5'
PAGE = 'https://drive.google.com/file/d/{}/view'
CONNECT_TIMEOUT = 5
# Seconds to the first byte of the file. gdown itself follows confirmation pages endlessly.
PATIENCE = 60
# An older partial file is not resumed, because the file on Google Drive may have changed.
# gdown compares versions during one download only.
MAX_PARTIAL_AGE = 24 * 3600
WEB_PAGE = 'Google Drive sent a web page instead of the file'


class DriveError(OSError):
    """Google Drive does not deliver a file."""


def is_drive_id(text: str) -> bool:
    """Whether a text can be the id of a file on Google Drive."""
    return re.fullmatch(r'[-\w]{20,}', text, re.ASCII) is not None


def download_from_drive(file_id: str, target: Path, progress: Optional[bool] = None) -> bool:
    """Download a file from Google Drive unless it exists; it appears when it is complete.

    The bytes of an interrupted download stay in a hidden folder beside the target, and the
    next call resumes from them.

    Args:
        file_id: The file's id on Google Drive.
        target: The local file.
        progress: Whether to show a progress bar. By default on a terminal.

    Returns:
        bool: Whether the file was downloaded.

    Raises:
        OSError: The file cannot be downloaded. The message is one line.
    """
    if target.is_file():
        return False
    gdown = _import_gdown()
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f'.{target.name}.lock')):
        if target.is_file():  # another process downloaded it
            return False
        transfer = _DriveTransfer(gdown, file_id, target)
        with progress_bar(progress) as bar:
            task = bar.add_task(target.name, total=None)
            with_retries(transfer, ATTEMPTS, lambda: bar.update(
                task, completed=transfer.received, total=transfer.total))
        transfer.finish()
    return True


def _import_gdown() -> ModuleType:
    """Import gdown, or say how to install it."""
    command = f"run: pip install 'gdown>={GDOWN_VERSION}'"
    try:
        import gdown
    except ImportError as error:
        raise DriveError(f'the package gdown is not installed; {command}') from error
    if digit_version(gdown.__version__) < digit_version(GDOWN_VERSION):
        raise DriveError(f'gdown {gdown.__version__} is too old; {command}')
    return gdown


class _DriveTransfer:
    """The bytes of one file on Google Drive, over as many connections as it takes.

    Args:
        gdown: The package.
        file_id: The file's id on Google Drive.
        target: The local file.

    Attributes:
        received: How many bytes have arrived; 0 before the first byte of this transfer.
        total: How many bytes the file has, if the server says so.
    """

    def __init__(self, gdown: ModuleType, file_id: str, target: Path) -> None:
        self.gdown, self.file_id, self.target = gdown, file_id, target
        # gdown chooses the name of its partial file, which this folder keeps apart.
        self.folder = target.with_name(f'.{target.name}.part')
        self.received = 0
        self.total: Optional[int] = None
        self._discard_old_partials()

    @property
    def complete(self) -> Path:
        """The complete file, before it gets its place."""
        return self.folder / self.target.name

    def _partials(self) -> list:
        return [path for path in self.folder.glob('*') if path.stat().st_size]

    def _discard_old_partials(self) -> None:
        """Remove partial files that gdown must not resume."""
        partials = self._partials()
        oldest = time.time() - MAX_PARTIAL_AGE
        if len(partials) != 1 or partials[0].stat().st_mtime < oldest or self.complete in partials:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, update: Callable[[], None]) -> None:
        """Receive the rest of the file.

        Raises:
            ConnectionError: The connection failed; another attempt may help.
            DriveError: Google Drive refuses the file.
        """
        self.folder.mkdir(exist_ok=True)
        had_partial, before = bool(self._partials()), self.received
        try:
            self._call_gdown(update)
        except self.gdown.FileURLRetrievalError as error:
            raise DriveError(_refusal(str(error))) from error
        except self.gdown.DownloadCancelled as error:
            raise DriveError(f'Google Drive sent no file for {PATIENCE} seconds') from error
        except self.gdown.DownloadError as error:
            if had_partial and self.received == before:  # the server refused to resume it
                shutil.rmtree(self.folder)
                return self.run(update)
            raise ConnectionError(self._broken_off() or _one_line(error)) from error
        finally:
            self._remove_empty_folder()

    def _call_gdown(self, update: Callable[[], None]) -> None:
        """Call gdown; an error of ``requests`` becomes one of this module."""
        from requests import exceptions
        stop = threading.Event()
        timer = threading.Timer(PATIENCE, stop.set)
        timer.daemon = True

        def progress(received: int, total: Optional[int]) -> None:
            timer.cancel()
            self.received, self.total = received, total
            update()

        timer.start()
        try:
            self.gdown.download(
                id=self.file_id, output=str(self.complete), quiet=True, resume=True,
                use_cookies=False, timeout=(CONNECT_TIMEOUT, TIMEOUT), progress=progress,
                cancel=stop)
        except exceptions.HTTPError as error:
            response = error.response
            raise DriveError(f'Google Drive answered {response.status_code} '
                             f'{response.reason}') from error
        except exceptions.RequestException as error:
            raise ConnectionError(self._broken_off() or (
                f'the connection to Google Drive failed: {_innermost(error)}')) from error
        except (LookupError, AssertionError, ValueError) as error:  # an answer it cannot parse
            raise DriveError(f'{WEB_PAGE} ({type(error).__name__} in gdown)') from error
        finally:
            timer.cancel()

    def _broken_off(self) -> str:
        """The error of a transfer that ended too early; empty if no byte arrived."""
        if not self.received:
            return ''
        return (f'the connection broke off after {self.received} of {self.total or "?"} bytes; '
                'run the command again to resume the download')

    def _remove_empty_folder(self) -> None:
        """Keep the folder for a later call only if it has bytes to resume."""
        if not self._partials():
            shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """Move the complete file to its place."""
        try:
            if _is_web_page(self.complete):
                raise DriveError(WEB_PAGE)
            os.replace(self.complete, self.target)
            sync_folder(self.target.parent)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def _refusal(message: str) -> str:
    """One line for gdown's message about a web page that has no link to the file."""
    if re.search('too many users|quota', message, re.IGNORECASE):
        return ("Google's download quota for this file is used up for now; it can take 24 hours "
                'until Google allows downloads again')
    return f'{WEB_PAGE}; the file may be deleted or not public'


def _one_line(error: Exception) -> str:
    return ' '.join(str(error).split())


def _innermost(error: BaseException) -> str:
    """The text of the error that caused the others."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return _one_line(error) or type(error).__name__


def _is_web_page(path: Path) -> bool:
    """Whether the content begins like HTML."""
    with path.open('rb') as file:
        head = file.read(1024).lstrip().lower()
    return head.startswith((b'<!doctype', b'<html', b'<head', b'<body'))
