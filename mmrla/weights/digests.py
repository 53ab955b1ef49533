"""Remember the sha256 of a downloaded file, and report a file that changed.

For files without a published checksum. The sha256 of the first file is trusted.
"""
import functools
from pathlib import Path
from typing import Optional

from mmengine.logging import print_log

from .errors import CheckpointError
from .reading import sha256_of
from .writing import write_file


def note_of(path: Path) -> Path:
    """The file that remembers the sha256 of another file, in the format of ``sha256sum``."""
    return path.with_name(f'{path.name}.sha256')


def check_remembered(path: Path, name: str) -> str:
    """Compare a file with its remembered sha256, or remember the sha256 at the first use.

    Args:
        path: The file.
        name: The name that messages use.

    Returns:
        str: The sha256.

    Raises:
        CheckpointError: The file differs from the one that was used before.
    """
    found, note = sha256_of(path), note_of(path)
    remembered = _read_note(note)
    if remembered is None:
        _log_once(f'{name}: sha256 {found}, {_remember(found, path)}')
    elif remembered == found:
        _log_once(f'{name}: sha256 {found}, as at the first use')
    else:
        raise CheckpointError(
            f'checkpoint {name} is not the file that was used before: the sha256 of {path} is '
            f'{found}, and {note.name} remembers {remembered}. Delete {note} to accept the new '
            f'file, or delete {path} to download it again')
    return found


def _read_note(note: Path) -> Optional[str]:
    """The sha256 in a note; None if there is no note."""
    if not note.is_file():
        return None
    words = note.read_text(errors='replace').split()
    return words[0].lower() if words else None


def _remember(digest: str, path: Path) -> str:
    """Write a note; a text that says so."""
    note = note_of(path)
    try:
        write_file(note, lambda file: file.write(f'{digest}  {path.name}\n'.encode()))
    except OSError as error:  # a cache that this user may only read
        return f'which cannot be remembered in {note} ({error.strerror or error})'
    return f'remembered in {note}'


@functools.cache
def _log_once(message: str) -> None:
    """Log a line once per process; a run reads its checkpoint twice."""
    print_log(message, logger='current')
