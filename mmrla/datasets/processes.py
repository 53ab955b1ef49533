"""Processes that read data for another one."""
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing.queues import Queue
from typing import Any

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the system end this process when the one that started it dies.

    Workers share the ends of their pipes. After SIGKILL of their parent they wait for each
    other, and stay. The processes of a run train on after SIGKILL of torchrun. Other systems
    than Linux do not offer this, and nothing is done there.

    Args:
        number: The signal that this process receives.
    """
    if not sys.platform.startswith('linux'):
        return
    # A worker knows which process started it, even if that process is dead already.
    creator = multiprocessing.parent_process()
    is_worker = creator is not None and multiprocessing.get_start_method() != 'forkserver'
    parent = creator.pid if is_worker else os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def end_if_unable_to_send() -> None:
    """Let this process end if it cannot send a batch, as with a full /dev/shm.

    multiprocessing drops such a batch, and the process that waits for it waits forever. Call
    this in a worker only: it changes the queues of the whole process.
    """
    Queue._on_queue_feeder_error = staticmethod(_end_with_message)


def _end_with_message(error: Exception, item: Any) -> None:
    # the parent knows only that a worker ended
    print(f'a data loader worker cannot send a batch ({error}): free some space in /dev/shm, or '
          'set train_dataloader.num_workers=0, then continue with --resume', file=sys.stderr,
          flush=True)
    os._exit(1)
