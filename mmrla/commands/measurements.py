"""Measurements of a function: time, memory, multiply-adds, and times of several in turn."""
import contextlib
import ctypes
import os
import resource
import time
from typing import Any, Callable, List, Optional

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class MultiplyAdds(TorchDispatchMode):
    """Count the multiply-adds of the convolutions and matrix products inside the context.

    torch's ``FlopCounterMode`` registers global module hooks. A backbone that has hooks
    computes the plain forms, so its count would not be that of the measured forms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (),
                           kwargs: Optional[dict] = None) -> Any:
        """Run an operator and add its multiply-adds."""
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out) // 2
        return out


def multiply_adds(function: Callable[[], Any]) -> int:
    """Count the multiply-adds of a call."""
    with MultiplyAdds() as counter:
        function()
    return counter.total


def saved_for_backward(model: nn.Module, function: Callable[[], Any]) -> int:
    """Return the bytes saved for backward, without the parameters and buffers.

    The tensors are detached: a saved output that kept its ``grad_fn`` would form a
    reference cycle, and the graph would never be freed.
    """
    own = {value.untyped_storage().data_ptr() for value in model.state_dict().values()}
    saved = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # A reference keeps the storage alive, so that no address is reused.
            saved[storage.data_ptr()] = storage.nbytes(), tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(size for size, _ in saved.values())


def peak_memory(function: Callable[[], Any]) -> int:
    """Return the peak memory of a call in bytes.

    On a GPU this is the memory that torch allocates. On a CPU it is the increase
    of the resident memory of a child process that runs only this call.
    """
    if not torch.cuda.is_available():
        return _peak_memory_of_child(function)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return torch.cuda.max_memory_allocated() - before


def _peak_memory_of_child(function: Callable[[], Any]) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # torch's threads do not survive a fork
        torch.set_num_threads(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        function()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(writer, str((after - before) * 1024).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return int(answer) if answer else 0


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, as torch's allocator does on a GPU.

    By default glibc returns large blocks to the kernel. Page faults then take up to
    a quarter of the time of inference, and their number depends on what ran before.
    Without glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL('libc.so.6')
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        library.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, its maximum


def seconds(function: Callable[[], None]) -> float:
    """Return the seconds of a call, including its work on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(functions: List[Callable[[], None]], rounds: int, warm_up: int) -> np.ndarray:
    """Time functions in turn.

    Each round reverses the order of the previous one, so that no function always
    runs after the same other one.

    Returns:
        np.ndarray: Seconds, of shape (rounds, functions).
    """
    times = np.zeros((warm_up + rounds, len(functions)))
    places = list(range(len(functions)))
    for row in times:
        for place in places:
            row[place] = seconds(functions[place])
        places.reverse()
    return times[warm_up:]


def quartiles(values: np.ndarray) -> List[float]:
    """Return the quartiles of values."""
    return [float(value) for value in np.percentile(values, (25, 50, 75))]
