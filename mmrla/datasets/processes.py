"""Processes that read data for another one."""
import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def end_with_parent() -> None:
    """Let the system end this process when the one that started it dies.

    Workers share the ends of their pipes. After SIGKILL of their parent they wait for each
    other, and stay. Other systems than Linux do not offer this, and nothing is done there.
    """
    if not sys.platform.startswith('linux'):
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
