"""Ending a command with one line instead of a traceback.

A command translates only errors whose cause is known:

- the exception classes that mmrla defines, such as ``DataError`` or
  ``CheckpointError``. The code that raises one knows the cause: its message
  names the file or setting and says what to do;
- errors of memory;
- errors of the operating system that only a write can raise.

Any other error keeps its traceback.
"""
import contextlib
import errno
from typing import Iterator, Optional

import torch

from mmrla.weights.writing import explain

# A full disk, an exceeded quota and a read-only file system.
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


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
    if isinstance(error, torch.OutOfMemoryError) or is_cpu_out_of_memory(error):
        return out_of_memory(str(error).splitlines()[0])
    if isinstance(error, MemoryError):
        return out_of_memory('the machine has no free memory')
    if isinstance(error, OSError) and error.errno in WRITE_ERRORS:
        return explain(error)
    return None


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


def is_cpu_out_of_memory(error: Exception) -> bool:
    """Return whether torch's CPU allocator failed; it raises a plain RuntimeError."""
    return (isinstance(error, RuntimeError) and 'DefaultCPUAllocator' in str(error)
            and "can't allocate memory" in str(error))


def out_of_memory(reason: str) -> str:
    """Return a message that names the settings that reduce memory use."""
    return (f'out of memory ({reason}). To use less memory, reduce train_dataloader.batch_size '
            '(the learning rate is scaled with it if auto_scale_lr is enabled), the scale of '
            'Resize in train_pipeline or train_dataloader.num_workers, set '
            'model.backbone.with_cp=True, or use --amp on a GPU. The last checkpoint is intact: '
            'continue with --resume')
