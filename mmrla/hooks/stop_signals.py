"""Ctrl-C and SIGTERM, which clusters send before they take a machine away."""
import os
import signal
import time
from typing import Any, Optional

import torch
import torch.distributed as dist

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

    def install(self) -> None:
        """Take over the signals, and let all processes agree on them."""
        self._process = os.getpid()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        if dist.is_available() and dist.is_initialized() and dist.get_backend() != 'gloo':
            self._group = dist.new_group(backend='gloo')  # no wait for the GPU

    def remove(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:
            return  # a worker of a loader: its parent will end it
        if self.received is not None and time.monotonic() - self._at > REPEATED_WITHIN:
            self.remove()
            os.kill(self._process, number)
            return
        self.received, self._at = number, time.monotonic()

    def agreed(self) -> int:
        """The signal that some process got, 0 if none did; the same for all."""
        number = int(self.received or 0)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            flag = torch.tensor([number])
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
            number = int(flag)
        return number


def ignore_in_worker(worker_init_fn: Any, worker_id: int) -> None:
    """Start a loader's worker that lives until its parent has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if worker_init_fn is not None:
        worker_init_fn(worker_id)
