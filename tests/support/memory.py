"""The memory of a test process."""
import ctypes
import gc
import resource

LIMIT = 2 << 30


def release_memory() -> None:
    """Collect garbage and let glibc return free memory to the system."""
    gc.collect()
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        pass


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
