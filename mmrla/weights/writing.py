"""Writing checkpoints: a file appears whole, read back and on the disk, or not at all.

mmengine (up to 0.10.7 at least) writes in place. A process that is killed, or
a disk that is full, then leaves half a file under the name of a whole one.
"""
import errno
import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Optional

import torch
from mmengine.fileio import LocalBackend, get_file_backend

from .reading import CheckpointError, check_sums, load_from_local, parse_bytes

# What a process that was killed leaves behind; see remove_leftovers.
PARTIAL = '.{name}.{pid}.part'
ADVICE = {
    errno.ENOSPC: 'free some space',
    errno.EDQUOT: 'free some of your quota',
    errno.EROFS: 'the file system is read-only: write elsewhere with --work-dir',
    errno.EACCES: 'get the right to write there, or write elsewhere with --work-dir',
    errno.EPERM: 'get the right to write there, or write elsewhere with --work-dir',
    errno.ENOENT: 'the folder is gone: is its disk still mounted?',
    errno.EEXIST: 'a part of its path is no folder: write elsewhere with --work-dir',
    errno.ENOTDIR: 'a part of its path is no folder: write elsewhere with --work-dir',
    errno.ESTALE: 'the network share went away: mount it again',
    errno.EIO: 'the disk fails: write elsewhere with --work-dir',
}


class SaveError(CheckpointError):
    """A checkpoint that cannot be written; the message names the file and the reason."""


def save_checkpoint(original: Callable, checkpoint: Dict[str, Any], filename: str,
                    file_client_args: Optional[dict] = None,
                    backend_args: Optional[dict] = None) -> None:
    """mmengine's ``save_checkpoint``, safe against whatever interrupts it.

    On a local disk the file is written under another name, forced to the disk,
    read back and renamed. Where there is no rename (object storage) it is
    written and read back; the hook names it as the newest only after that.

    Args:
        original: mmengine's function, for ``pavi://`` and ``file_client_args``.
        checkpoint: What to save.
        filename: A path, or a name that a file backend of mmengine's knows.
        file_client_args: As for mmengine.
        backend_args: As for mmengine.
    """
    if filename.startswith('pavi://') or file_client_args is not None:
        original(checkpoint, filename, file_client_args=file_client_args,
                 backend_args=backend_args)
        return
    backend = get_file_backend(filename, backend_args=backend_args)
    try:
        if isinstance(backend, LocalBackend):
            write_file(Path(filename).expanduser(), lambda file: torch.save(checkpoint, file),
                       verify=verify)
        else:
            _write_remote(backend, checkpoint, filename)
    except OSError as error:
        raise SaveError(explain(error, filename)) from error


def write_file(path: Path, write: Callable[[BinaryIO], Any],
               verify: Callable[[Path], Any] = lambda path: None) -> None:
    """Let a file appear complete or not at all, whatever happens to the process.

    Args:
        path: The file. One of that name stays until the new one takes its place.
        write: Writes into the open file.
        verify: Raises if the written file is no good.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(PARTIAL.format(name=path.name, pid=os.getpid()))
    try:
        with partial.open('wb') as file:
            _write_through(file, write)
        verify(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_through(file: BinaryIO, write: Callable[[BinaryIO], Any]) -> None:
    """Write down to the disk; a full one is an OSError, whatever torch makes of it."""
    try:
        write(file)
    except RuntimeError as error:  # torch's writer hides what the disk said
        cause = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        raise cause or _disk_error(file, error) from error
    file.flush()
    os.fsync(file.fileno())


def _disk_error(file: BinaryIO, error: RuntimeError) -> Exception:
    """What the disk says to one more byte; if it takes that, the error itself."""
    try:
        file.write(bytes(1 << 16))
        file.flush()
    except OSError as found:
        return found
    return error


def sync_folder(folder: Path) -> None:
    """Force a rename to the disk; without it a power cut may undo it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # some network shares open no folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def verify(path: Path) -> Dict[str, Any]:
    """Read a checkpoint and compare every byte with its checksums.

    Returns:
        dict: The checkpoint, its tensors without values.
    """
    check_sums(path, str(path))
    return load_from_local(str(path), map_location='meta')


def _write_remote(backend: Any, checkpoint: Dict[str, Any], filename: str) -> None:
    """Write to a backend without rename, and read it back."""
    from io import BytesIO
    buffer = BytesIO()
    torch.save(checkpoint, buffer)
    content = buffer.getvalue()
    backend.put(content, filename)
    if bytes(backend.get(filename)) != content:
        raise SaveError(f'checkpoint {filename} was read back different from what was written; '
                        'the one before it is still the newest')
    parse_bytes(content, filename, map_location='meta')


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed."""
    for path in folder.glob(PARTIAL.format(name='*', pid='*')):
        path.unlink(missing_ok=True)


def explain(error: OSError, name: Optional[str] = None) -> str:
    """One line for an error of the disk, with what to do."""
    name = name or error.filename or 'a file'
    advice = ADVICE.get(error.errno, 'see to its disk')
    return (f'{name} cannot be written ({error.strerror or error}): {advice}, then go on with '
            '--resume. Earlier checkpoints are untouched')
