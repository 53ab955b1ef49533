"""Download a file from Google Drive, through gdown.

gdown follows Google's redirects and confirmation page, and resumes a transfer that breaks
off. This module adds a time limit, one download at a time, a file that appears when it is
complete, and errors of one line.
"""
import contextlib
import os
import re
import shutil
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, Iterator, Optional

from filelock import FileLock
from mmengine.utils import digit_version

from .download import TIMEOUT, progress_bar
from .writing import sync_folder

GDOWN_VERSION = '6.5'
PAGE = 'https://drive.google.com/file/d/{}/view'
# The pattern of the addresses that a browser and Google's download button show.
LINK = r'https://(?:drive|docs)\.google\.com/|https://drive\.usercontent\.google\.com/'
CONNECT_TIMEOUT = 5
# Seconds until Google Drive offers the file. gdown follows confirmation pages endlessly.
PATIENCE = 30
# How often a transfer is resumed. gdown waits up to 30 seconds between two attempts.
RETRIES = 8
WEB_PAGE = 'Google Drive sent a web page instead of the file'


class DriveError(OSError):
    """Google Drive does not deliver a file."""


def is_drive_id(text: str) -> bool:
    """Whether a text can be the id of a file on Google Drive."""
    return re.fullmatch(r'[-\w]{20,}', text, re.ASCII) is not None


def id_in_link(link: str) -> Optional[str]:
    """The id in the address of a file on Google Drive, or None.

    Example:
        >>> id_in_link('https://drive.google.com/file/d/1cetP1SdOiwznLxlBUaHG8Q8c4RIwToWW/view')
        '1cetP1SdOiwznLxlBUaHG8Q8c4RIwToWW'
    """
    found = re.search(r'(?:/file/d/|[?&]id=)([-\w]{20,})(?![-\w])', link, re.ASCII)
    return found and found[1]


def download_from_drive(file_id: str, target: Path, progress: Optional[bool] = None) -> bool:
    """Download a file from Google Drive unless it exists; it appears when it is complete.

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
        with _folder_for(target) as folder:
            part = folder / target.name
            _Transfer(gdown, file_id, part).run(progress)
            if _is_web_page(part):
                raise DriveError(WEB_PAGE)
            part.chmod(0o666 & ~_umask())  # gdown's file is private
            os.replace(part, target)
            sync_folder(target.parent)
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


@contextlib.contextmanager
def _folder_for(target: Path) -> Iterator[Path]:
    """A folder for the incomplete file, whose name gdown chooses."""
    folder = target.with_name(f'.{target.name}.part')
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Transfer:
    """The download of one file by gdown.

    Args:
        gdown: The package.
        file_id: The file's id on Google Drive.
        target: The local file.
    """

    def __init__(self, gdown: ModuleType, file_id: str, target: Path) -> None:
        self.gdown, self.file_id, self.target = gdown, file_id, target
        self.received, self.total = 0, None

    def run(self, progress: Optional[bool]) -> None:
        """Download the file; every error of gdown becomes a :class:`DriveError`."""
        from requests import RequestException
        try:
            # Not retried: without a network or with a used-up quota the error is final.
            self._call(skip_download=True)
            with progress_bar(progress) as bar:
                task = bar.add_task(self.target.name, total=None)
                self._call(retries=RETRIES, progress=lambda received, total: (
                    self._count(received, total),
                    bar.update(task, completed=received, total=total)))
        except self.gdown.FileURLRetrievalError as error:
            raise DriveError(_refusal(str(error))) from error
        except self.gdown.DownloadCancelled as error:
            raise DriveError(f'Google Drive offered no file within {PATIENCE} seconds') from error
        except (self.gdown.DownloadError, RequestException) as error:
            raise DriveError(self._failure(error)) from error
        except (LookupError, AssertionError, ValueError) as error:
            raise DriveError(f'{WEB_PAGE}, which gdown cannot read') from error

    def _call(self, **arguments: Any) -> None:
        """Call gdown; stop it if there is no byte of the file for too long."""
        stop = threading.Event()
        timer = threading.Timer(PATIENCE, lambda: self.received or stop.set())
        timer.daemon = True
        timer.start()
        try:
            self.gdown.download(
                id=self.file_id, output=str(self.target), quiet=True, use_cookies=False,
                timeout=(CONNECT_TIMEOUT, TIMEOUT), cancel=stop, **arguments)
        finally:
            timer.cancel()

    def _count(self, received: int, total: Optional[int]) -> None:
        self.received, self.total = received, total

    def _failure(self, error: Exception) -> str:
        """One line for a connection that failed."""
        response = getattr(error, 'response', None)
        if response is not None:
            return f'Google Drive answered {response.status_code} {response.reason}'
        if self.received:
            return f'the connection broke off after {self.received} of {self.total or "?"} bytes'
        return f'the connection to Google Drive failed: {_innermost(error)}'


def _refusal(message: str) -> str:
    """One line for gdown's message about a web page that has no link to the file."""
    if re.search(r'too\s+many\s+users|quota', message, re.IGNORECASE):
        return ("Google's download quota for this file is used up for now; it can take 24 hours "
                'until Google allows downloads again')
    return f'{WEB_PAGE}; the file may be deleted or not public'


def _innermost(error: BaseException) -> str:
    """The text of the error that caused the others, as one line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return ' '.join(str(error).split()) or type(error).__name__


def _is_web_page(path: Path) -> bool:
    """Whether the content begins like HTML."""
    with path.open('rb') as file:
        head = file.read(1024).lstrip().lower()
    return head.startswith((b'<!doctype', b'<html', b'<head', b'<body'))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
