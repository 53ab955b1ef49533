"""Write files atomically: a file appears complete, on the disk and verified, or not at all.

mmengine (up to 0.10.7 at least) writes in place. If the process is killed or the disk
is full, a truncated file remains under the name of a complete one.
"""
import errno
import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Optional, Union

from mmengine.fileio import LocalBackend, register_backend

from .background import WRITER
from .errors import SaveError
from .reading import check_sums, read_local

# The name of a file while it is being written. A killed process leaves it; see
# remove_leftovers.
PARTIAL = '.{name}.{pid}.part'
ADVICE = {
    errno.ENOSPC: 'free some space',
    errno.EDQUOT: 'free some of your quota',
    errno.EROFS: 'the file system is read-only; choose another folder with --work-dir',
    errno.EACCES: 'get write permission, or choose another folder with --work-dir',
    errno.EPERM: 'get write permission, or choose another folder with --work-dir',
    errno.ENOENT: 'the folder no longer exists; check that its disk is mounted',
    errno.EEXIST: 'a part of the path is not a folder; choose another folder with --work-dir',
    errno.ENOTDIR: 'a part of the path is not a folder; choose another folder with --work-dir',
    errno.ESTALE: 'the network share was disconnected; mount it again',
    errno.EMFILE: 'raise the limit of open files (ulimit -n)',
    errno.ENFILE: 'close other programs: the system has too many open files',
    errno.EIO: 'the disk reports an error; choose another folder with --work-dir',
}


def save_error(error: OSError, name: Union[str, Path]) -> SaveError:
    """The :class:`SaveError` for a failed write, with the reason and the fix."""
    advice = ADVICE.get(error.errno, 'check its disk')
    return SaveError(f'{name} cannot be written ({error.strerror or error}): {advice}, then '
                     'continue with --resume. Earlier checkpoints are unchanged')


def write_file(path: Path, write: Callable[[BinaryIO], Any],
               verify: Callable[[Path], Any] = lambda path: None) -> None:
    """Write a file that appears complete or not at all.

    Args:
        path: The file. An existing file of that name stays until the new one replaces it.
        write: Writes into the open file.
        verify: Raises if the written file is not valid.
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
    """Write and flush to the disk. A full disk raises OSError, whatever torch raises."""
    try:
        write(file)
    except RuntimeError as error:  # torch's writer hides the error of the disk
        cause = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        raise cause or _disk_error(file, error) from error
    file.flush()
    os.fsync(file.fileno())


def _disk_error(file: BinaryIO, error: RuntimeError) -> Exception:
    """The error of writing more bytes; ``error`` itself if the disk accepts them."""
    try:
        file.write(bytes(1 << 16))
        file.flush()
    except OSError as found:
        return found
    return error


def sync_folder(folder: Path) -> None:
    """Flush a rename to the disk. Without it a power failure may undo the rename."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # some network shares cannot open folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def verify_checkpoint(path: Path) -> Dict[str, Any]:
    """Read a checkpoint and compare every byte with its checksums.

    Returns:
        dict: The checkpoint; its tensors have no values.
    """
    check_sums(path, str(path))
    return read_local(str(path), map_location='meta')


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files of processes that were killed."""
    for path in folder.glob(PARTIAL.format(name='*', pid='*')):
        path.unlink(missing_ok=True)


@register_backend('atomic')
class AtomicBackend(LocalBackend):
    """mmengine's ``LocalBackend`` whose writes are atomic, for ``backend_args``.

    A checkpoint (``*.pth``) is also verified before it gets its name.
    """

    def put(self, obj: Union[bytes, memoryview], filepath: Union[str, Path]) -> None:
        """Write bytes to a file."""
        path = Path(filepath).expanduser()
        verify = verify_checkpoint if path.suffix == '.pth' else lambda path: None
        try:
            write_file(path, lambda file: file.write(obj), verify)
        except OSError as error:
            raise save_error(error, path) from error

    def put_text(self, obj: str, filepath: Union[str, Path], encoding: str = 'utf-8') -> None:
        """Write text to a file."""
        self.put(obj.encode(encoding), filepath)


@register_backend('atomic_background')
class BackgroundBackend(AtomicBackend):
    """``AtomicBackend`` whose files are written while the run goes on.

    :meth:`put` returns at once. ``WRITER.wait()`` waits for the file and raises the
    error of writing it.
    """

    def put(self, obj: Union[bytes, memoryview], filepath: Union[str, Path]) -> None:
        """Write bytes to a file, soon."""
        WRITER.submit(lambda: AtomicBackend.put(self, obj, filepath))


def atomic_backend_args(backend_args: Optional[dict], is_local: bool,
                        backend: str = 'atomic') -> Optional[dict]:
    """``backend_args`` for a checkpoint: atomic on a local disk unless another is named."""
    if not is_local or (backend_args or {}).get('backend') not in (None, 'local'):
        return backend_args
    return {**(backend_args or {}), 'backend': backend}
