"""The files of a work dir beside its checkpoints: which run it belongs to, and its last checkpoint.

The file ``last_checkpoint`` is for people and other tools. mmrla reads it only to find
the folder of the checkpoints when the work dir itself has none.
"""
import errno
import json
import os
import socket
import uuid
from pathlib import Path
from typing import IO, Optional

from mmrla.weights.writing import remove_leftovers, save_error, write_file

from .errors import RunError

POINTER = 'last_checkpoint'
# Longer names of files and paths do not exist.
MAX_NAME, MAX_PATH = 255, 4096
# The run that the newest checkpoints belong to: a new run must not resume from the
# epoch_12.pth of an older one.
RUN_FILE = 'run.json'
LOCK_FILE = '.lock'


def read_run(folder: Path) -> Optional[str]:
    """The run that a work dir belongs to; None if it does not say."""
    try:
        return str(json.loads(_read_line(folder / RUN_FILE))['run'])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def lock(folder: Path) -> Optional[IO[str]]:
    """Keep other processes out of a work dir; raise if one is in it.

    The system removes the lock when the process ends, however it ends.

    Returns:
        The open file of the lock, which must stay open; None where there are no locks.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    try:
        file = (folder / LOCK_FILE).open('a+')
    except OSError as error:
        raise save_error(error, folder / LOCK_FILE) from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return None
        file.seek(0)
        owner = file.read(200).strip()
        raise RunError(f'work dir {folder} is used by another run ({owner}). End that run, or '
                       'choose another folder with --work-dir') from None
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}')
    file.flush()
    return file


def claim(folder: Path, run: Optional[str]) -> str:
    """Assign a work dir to a run, by default to a new one; the run's name."""
    run = run or uuid.uuid4().hex
    try:
        remove_leftovers(folder)
        if read_run(folder) != run:
            content = json.dumps(dict(run=run)).encode()
            write_file(folder / RUN_FILE, lambda file: file.write(content))
    except OSError as error:
        raise save_error(error, folder) from error
    return run


def read_pointer(folder: Path) -> Optional[str]:
    """What ``last_checkpoint`` names; None if there is no such file or it names no path."""
    try:
        name = _read_line(folder / POINTER)
    except (OSError, ValueError):
        return None
    is_path = name.isprintable() and len(name) < MAX_PATH and all(
        len(part) <= MAX_NAME for part in Path(name).parts)
    return name if name and is_path else None


def _read_line(path: Path) -> str:
    """The content of a small file, which may be anything in a work dir of somebody else."""
    if not path.is_file():
        raise FileNotFoundError(f'{path} is not a file')
    with path.open('rb') as file:
        return file.read(MAX_PATH).decode().strip()


def point_to(folder: Path, checkpoint: str) -> None:
    """Let ``last_checkpoint`` name a checkpoint."""
    try:
        write_file(folder / POINTER, lambda file: file.write(checkpoint.encode()))
    except OSError as error:
        raise save_error(error, folder / POINTER) from error
