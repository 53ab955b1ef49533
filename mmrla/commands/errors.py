"""End a command with one line instead of a traceback; ``--traceback`` shows it.

A command translates only errors whose cause is known: the exception classes that mmrla
defines, and errors of memory and full disks. The code that raises one of our classes
knows the cause; its message names the file or setting and says what to do. Any other
error keeps its traceback.
"""
import contextlib
import os
import re
from typing import Iterator, Optional

from mmengine.registry import DefaultScope

from mmrla.datasets.errors import printable
from mmrla.engine.config_checks import ConfigError, arguments_of, unknown_argument
from mmrla.engine.errors import run_error

# Set by a launcher of several processes, which prints the content of this file at the end.
ERROR_FILE = 'MMRLA_ERROR_FILE'
TRACEBACK = 'MMRLA_TRACEBACK'
# mmengine names the module before Python's message, which names the class or a parent of it.
UNKNOWN_ARGUMENT = (r"(?:(\w+): )?(?:(\w+)\.)?__init__\(\) got an unexpected keyword argument "
                    r"'(\w+)'")
# What wrong values in a config raise when modules are built from it.
VALUE_ERRORS = (TypeError, ValueError, LookupError, AssertionError, AttributeError, ImportError,
                FileNotFoundError, NotImplementedError, NameError, RuntimeError, SyntaxError)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End the command with one line and exit code 1 if the cause of an error is known."""
    try:
        yield
    except Exception as error:
        message = explanation(error)
        if message is None or os.environ.get(TRACEBACK):
            raise
        leave_for_launcher(message)
        raise SystemExit(message) from None


def leave_for_launcher(message: str) -> None:
    """Write the message of the first process that fails to the launcher's file."""
    path = os.environ.get(ERROR_FILE)
    if path:
        with contextlib.suppress(OSError), open(path, 'x') as file:
            file.write(f'{message}\n')


@contextlib.contextmanager
def value_errors(source: str) -> Iterator[None]:
    """Translate what wrong values raise while a config is read or modules are built.

    Args:
        source: The config, for the message.
    """
    try:
        yield
    except VALUE_ERRORS as error:
        if is_user_error(error) or run_error(error) is not None:
            raise
        raise ConfigError(f'{source}: {value_message(error)} (--traceback shows where)') from error


def value_message(error: Exception) -> str:
    """Return the message of an error of a config value, in one line.

    mmengine puts the class and its file before the message, once for each module around it.
    """
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = re.sub(r'class `(\w+)` in \S+\.py: ', r'\1: ', text).strip()
    line = (text.splitlines() or [''])[0]
    line = re.sub(r'^(\w+: )(?:\w+: )*(?=\w+: )', '', line)  # the innermost module is enough
    line = line.split('. Please check whether')[0]
    unknown = re.match(UNKNOWN_ARGUMENT, line)
    module = unknown and (unknown[1] or unknown[2])
    if module:
        scope = DefaultScope.get_current_instance()
        return unknown_argument(module, unknown[3], arguments_of(
            module, scope.scope_name if scope else 'mmengine'))
    return line or type(error).__name__


def explanation(error: Exception) -> Optional[str]:
    """Return what to tell the user, or None if the cause is not known."""
    known = error if is_user_error(error) else run_error(error)
    return None if known is None else printable(message_of(known))


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
