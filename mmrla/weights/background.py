"""Write files while a run goes on."""
import threading
from collections import deque
from typing import Callable, Deque, Optional


class BackgroundWriter:
    """One thread that runs tasks in their order.

    After a task that fails, the tasks behind it are dropped: a pointer never names a file
    whose writing failed. :meth:`wait` raises the error.
    """

    def __init__(self) -> None:
        self._tasks: Deque[Callable[[], None]] = deque()
        self._thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task after those that were submitted before."""
        with self._lock:
            if self._error is not None:
                return
            self._tasks.append(task)
            if self._thread is None:
                # not a daemon: the interpreter waits for it
                self._thread = threading.Thread(target=self._work, name='mmrla-save')
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._thread = None
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:
                with self._lock:
                    self._error = error
                    self._tasks.clear()

    def wait(self) -> None:
        """Wait for all tasks; raise the error of one that failed, once."""
        thread = self._thread
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


# One a process: two checkpoints at a time would need twice the memory.
WRITER = BackgroundWriter()
