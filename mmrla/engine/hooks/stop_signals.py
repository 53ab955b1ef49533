"""Ctrl-C and SIGTERM, which clusters send before they take a machine away."""
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
from torch.utils.data import DataLoader

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# torchrun repeats a signal that the terminal has already sent to everyone.
REPEATED_WITHIN = 3.0


class StopSignals:
    """Remember that a signal came, until the training can be saved.

    A second signal, later than torchrun's echo of the first, acts at once.
    """

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._at = 0.0
        self._process = os.getpid()
        self._before = {}
        self._group = None
        self._stopping = mmap.mmap(-1, 1)  # shared with the loaders' workers

    def install(self) -> None:
        """Take over the signals, and let all processes agree on them."""
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        if dist.is_available() and dist.is_initialized() and dist.get_backend() != 'gloo':
            self._group = dist.new_group(backend='gloo')  # no wait for the GPU

    def remove(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        self._stopping[0] = 0

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:
            return  # a worker that is being started: its parent will end it
        if self.received is not None and time.monotonic() - self._at > REPEATED_WITHIN:
            self.remove()
            os.kill(self._process, number)
            return
        self.received, self._at = number, time.monotonic()
        self._stopping[0] = 1

    def agreed(self) -> int:
        """The signal that some process got, 0 if none did; the same for all."""
        number = int(self.received or 0)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            flag = torch.tensor([number])
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
            number = int(flag)
        return number

    def shield_workers(self, loader: DataLoader) -> None:
        """Let a loader's workers live until the run is saved.

        Ctrl-C and a cluster's SIGTERM go to every process of a run, and torch
        ends a run whose workers are gone.
        """
        shielded = getattr(getattr(loader.worker_init_fn, 'func', None), '__self__', None) is self
        # without fork they would have no memory in common
        if not shielded and multiprocessing.get_start_method() == 'fork':
            loader.worker_init_fn = functools.partial(self._init_worker, loader.worker_init_fn)

    def _init_worker(self, worker_init_fn: Optional[Callable], worker_id: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._handle_in_worker)
        if worker_init_fn is not None:
            worker_init_fn(worker_id)

    def _handle_in_worker(self, number: int, frame: Any) -> None:
        """Go on if the whole run was told to stop, end if only this worker was."""
        for _ in range(20):
            if self._stopping[0]:
                return
            time.sleep(0.05)
        os._exit(0)  # as torch's own handler does
