"""End a command with one line instead of a traceback.

A command translates only errors whose cause is known: the exception classes that mmrla
defines, and errors of memory and full disks. The code that raises one of our classes
knows the cause; its message names the file or setting and says what to do. Any other
error keeps its traceback.
"""
import contextlib
from typing import Iterator, Optional

from mmrla.engine.errors import run_error


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End the command with one line and exit code 1 if the cause of an error is known."""
    try:
        yield
    except Exception as error:
        message = explanation(error)
        if message is None:
            raise
        raise SystemExit(message) from None


def explanation(error: Exception) -> Optional[str]:
    """Return what to tell the user, or None if the cause is not known."""
    if is_user_error(error):
        return message_of(error)
    known = run_error(error)
    return None if known is None else str(known)


def is_user_error(error: Exception) -> bool:
    """Return whether an error is of an exception class that mmrla defines."""
    return type(error).__module__.startswith('mmrla.')


def message_of(error: Exception) -> str:
    """Return the message of one of our errors.

    A worker of a data loader puts its own traceback before the message. The
    last line is the message then, after the name of the class.
    """
    text = str(error).strip()
    prefix = f'{type(error).__module__}.{type(error).__qualname__}: '
    return text.rpartition(prefix)[2] if prefix in text else text
