"""The memory of a test process."""
import ctypes
import gc
import resource
from pathlib import Path

LIMIT = 2 << 30


def release_memory() -> None:
    """Collect garbage and let glibc return free memory to the system."""
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
