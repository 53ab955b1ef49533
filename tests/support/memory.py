"""The memory of a test process, and of the tensors that are saved for backward."""
import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path
from typing import Iterator, List

import torch
from torch import Tensor

LIMIT = 2 << 30


@contextlib.contextmanager
def saved_sizes() -> Iterator[List[int]]:
    """Collect the numbers of elements of the tensors that are saved for backward.

    The tensors are detached: a saved output that kept its ``grad_fn`` would form a reference
    cycle, and the graph and its parameters would never be freed.
    """
    sizes = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def release_memory() -> None:
    """Free compiled graphs and garbage, and let glibc return free memory to the system."""
    if 'torch._dynamo' in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        pass


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int(Path('/proc/self/statm').read_text().split()[1])
    except OSError:  # not Linux
        return 0
    return pages * resource.getpagesize()


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
