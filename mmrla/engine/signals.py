"""Remember that a signal arrived, until the run can be saved."""
import functools
import mmap
import multiprocessing
import os
import signal
import threading
import time
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from torch.utils.data import DataLoader

from mmrla.datasets.processes import end_if_unable_to_send, end_with_parent

# Slurm sends SIGUSR1 before the time limit of a job, if tools/slurm_train.sh started it.
ENDING = tuple(getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1') if hasattr(signal, name))
SIGNALS = (signal.SIGINT, *ENDING)
# torchrun repeats a signal that the terminal has already sent to every process.
REPEATED_WITHIN = 3.0


class StopSignals:
    """The signals that ask a run to stop.

    A second signal, later than torchrun's repetition of the first, acts at once.

    Attributes:
        received: The number of the signal that arrived; None so far.
    """

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._at = 0.0
        self._process = os.getpid()
        self._previous = {}
        self._group = None
        self._is_stopping = mmap.mmap(-1, 1)  # shared with the workers of the loaders

    @property
    def is_installed(self) -> bool:
        """bool: Whether this object handles the signals."""
        return bool(self._previous)

    def install(self) -> None:
        """Handle the signals, and prepare for all processes to agree on them."""
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        if dist.is_available() and dist.is_initialized() and dist.get_backend() != 'gloo':
            self._group = dist.new_group(backend='gloo')  # does not wait for the GPU

    def remove(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        self._is_stopping[0] = 0

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:
            return  # a worker that is starting; its parent will end it
        if self.received is not None and time.monotonic() - self._at > REPEATED_WITHIN:
            self.remove()
            os.kill(self._process, number)
            return
        self.received, self._at = number, time.monotonic()
        self._is_stopping[0] = 1

    def agreed(self) -> int:
        """The signal that any process received, 0 if none did; the same on all processes."""
        number = int(self.received or 0)
        if get_world_size() > 1:
            flag = torch.tensor([number])
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
            number = int(flag)
        return number

    def wait_for_all(self) -> None:
        """Wait until every process has called this.

        A launcher ends all processes when the first one ends, and the first one must not end
        while another one writes the checkpoint.
        """
        if get_world_size() > 1:
            dist.barrier(group=self._group)

    def shield_workers(self, loader: DataLoader) -> None:
        """Keep the workers of a loader alive until the run is saved.

        Ctrl-C and the signals of a cluster reach every process of a run, and torch ends a run
        whose workers are gone. Call this before the loader's first iterator.
        """
        # without fork, workers and parent share no memory
        if multiprocessing.get_start_method() == 'fork':
            loader.worker_init_fn = functools.partial(self._init_worker, loader.worker_init_fn)

    def _init_worker(self, worker_init_fn: Optional[Callable], worker_id: int) -> None:
        end_with_parent()
        end_if_unable_to_send()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in ENDING:
            signal.signal(number, self._handle_in_worker)
        if worker_init_fn is not None:
            worker_init_fn(worker_id)

    def _handle_in_worker(self, number: int, frame: Any) -> None:
        """Continue if the whole run was asked to stop, end if only this worker was."""
        for _ in range(20):
            if self._is_stopping[0]:
                return
            time.sleep(0.05)
        os._exit(0)  # as torch's own handler does
