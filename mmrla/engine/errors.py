"""Errors of a run. Each message says what happened and what to do."""
import errno
import re
from pathlib import Path
from typing import Optional, Union

import torch
import torch.distributed as dist

from mmrla.weights.errors import SaveError
from mmrla.weights.writing import save_error


class RunError(RuntimeError):
    """A run ended for a reason that a user can fix without reading the code."""


class NoWeightsError(RunError):
    """A run would freeze random values."""


class DivergedError(RunError):
    """A loss or a weight is not finite."""


class ProcessGroupError(RunError):
    """Another process of a distributed run ended."""


class WorkerError(RunError):
    """A worker of a data loader was killed."""


class MemoryLimitError(RunError):
    """The GPU or the machine has no memory left."""


def run_error(error: BaseException, work_dir: Optional[str] = None
              ) -> Union[RunError, SaveError, None]:
    """The error with the fix for an error of torch or the disk; None if the cause is not known.

    Args:
        error: What a run raised.
        work_dir: Its work dir, if there is one. An OSError of a file in it is a failed write.
    """
    if isinstance(error, OSError):
        return _write_error(error, work_dir)
    line = (str(error).splitlines() or [''])[0]
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return _out_of_memory(line or 'the machine has no memory left')
    if not isinstance(error, RuntimeError) or isinstance(error, RunError):
        return None
    if re.search("[Cc]an('t|not) allocate memory", line):
        return _out_of_memory(line)
    if re.search('DataLoader worker .* (killed by signal|exited unexpectedly)', line):
        return WorkerError(
            f'{line} The system killed a data loader worker, usually because memory or the space '
            'in /dev/shm ran out. Set a smaller train_dataloader.num_workers, then continue with '
            '--resume')
    if dist.is_available() and dist.is_initialized() and _is_lost_connection(error, line):
        return ProcessGroupError(
            f'another process of this run ended ({_reason(line)}). Its own message is above or in '
            'the log of its machine. Continue with --resume')
    return None


def _reason(line: str) -> str:
    """What gloo reports, without the place in its sources and its advice."""
    line = re.sub(r'^\[\S+\.cc:\d+\] ', '', line)
    return line.split('. This is typically')[0][:200]


def _write_error(error: OSError, work_dir: Optional[str]) -> Optional[SaveError]:
    """The error of a file in the work dir, or one that only a write can raise."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return save_error(error, error.filename or work_dir or 'a file')
    if work_dir is None or error.filename is None:
        return None
    folder, file = Path(work_dir).absolute(), Path(str(error.filename)).absolute()
    is_inside = folder == file or folder in file.parents
    return save_error(error, error.filename) if is_inside else None


def _is_lost_connection(error: RuntimeError, line: str) -> bool:
    """Whether a collective operation lost its peer."""
    if isinstance(error, dist.DistBackendError):  # NCCL: other misuse has its own words
        return bool(re.search('remote process exited|unhandled system error|timeout', str(error)))
    return bool(re.search('Connection (closed|reset) by peer|Timed out waiting|Broken pipe|'
                          'Socket Timeout', line))


def _out_of_memory(reason: str) -> MemoryLimitError:
    return MemoryLimitError(
        f'out of memory ({reason}). These settings need less: a smaller '
        'train_dataloader.batch_size (the learning rate follows where auto_scale_lr is enabled), '
        '--amp on a GPU, model.backbone.with_cp=True, a smaller scale of Resize in '
        'train_pipeline, fewer train_dataloader.num_workers. The last checkpoint is valid; '
        'continue with --resume')
