"""When a run is interrupted: at an event in it, or some time after a step."""
import builtins
import contextlib
import io
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

from mmengine.hooks import Hook

from .small_runs import Progress

CHUNK = 1 << 16
# Events that a process of the run notices itself. At all others the parent waits and kills.
INSIDE = ('write', 'pointer', 'validation', 'removal')
EVENTS = ('start', 'step', *INSIDE)
# Values of Progress.struck.
WAITING, DONE = 1, 2
# The longest time between a start or a step and a kill, in seconds.
DELAYS = dict(start=0.5, step=0.15)


class Moment(NamedTuple):
    """When and what to kill.

    Attributes:
        event: One of ``EVENTS``: some time after the start or after a step, while a
            checkpoint or the pointer to it is written, in a validation, or around the removal of
            a checkpoint.
        count: Which of these events, from 1.
        part: Where in the event, from 0 to 1.
        victim: ``'rank'``, ``'all'`` ranks, ``'worker'`` or ``'launcher'``.
        index: The number of the rank.
    """
    event: str
    count: int
    part: float
    victim: str
    index: int


def draw(rng: random.Random, events: Sequence[str], victims: Sequence[str],
         processes: int) -> Moment:
    """Draw a moment."""
    event = rng.choice(events)
    return Moment(event, rng.randint(1, 2 if event in INSIDE else 3), rng.random(),
                  rng.choice(victims), rng.randrange(processes))


class Striker:
    """Count the events of a run in its first process, and stop it at one of them.

    Args:
        moment: The moment; None to only report.
        progress: The progress of the run.
    """

    def __init__(self, moment: Optional[Moment], progress: Progress) -> None:
        self.moment, self.progress = moment, progress
        self.seen = 0

    def happens(self, event: str) -> bool:
        """Count an event; return whether it is the one to act at."""
        if self.moment is None or event != self.moment.event or self.progress.struck:
            return False
        self.seen += 1
        return self.seen == self.moment.count

    def strike(self) -> None:
        """Wait in this thread until the parent has killed; see :func:`wait_for`."""
        self.progress.struck = WAITING
        while self.progress.struck == WAITING:
            time.sleep(0.0005)


class ValidationHook(Hook):
    """Strike in a validation: before, within, or before its best checkpoint is saved."""

    priority = 'VERY_HIGH'

    def __init__(self, striker: Striker) -> None:
        self.striker = striker
        self.place = -1

    def before_val(self, runner) -> None:
        """Choose the place."""
        if self.striker.happens('validation'):
            self.place = int(self.striker.moment.part * 3)
            self._strike_at(0)

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Strike within the validation."""
        self._strike_at(1)

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Strike at the end of the validation."""
        self._strike_at(2)

    def _strike_at(self, place: int) -> None:
        if self.place == place:
            self.place = -1
            self.striker.strike()


class SavingHook(Hook):
    """Report which checkpoint is being saved."""

    priority = 'LOWEST'  # after the hook that adds the key below

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Report a checkpoint of the run; the best one, which nobody resumes, is no such."""
        if 'continuation' in checkpoint:
            self.progress.saving = checkpoint['meta']['iter']


@contextlib.contextmanager
def watched_files(folder: Path, striker: Striker, seconds: float = 0.0) -> Iterator[None]:
    """Strike while files below a folder are written or removed.

    Args:
        folder: The folder.
        striker: Who strikes.
        seconds: A pause after every 64 KB, so that a write takes long enough for kills from
            outside.
    """
    opened, removed, replaced = builtins.open, os.remove, os.replace

    def watched_open(file: Any, mode: str = 'r', *args: Any, **kwargs: Any) -> Any:
        result, name = opened(file, mode, *args, **kwargs), str(file)
        if 'w' not in mode or not name.startswith(str(folder)):
            return result
        event = 'write' if '.pth' in name else 'pointer' if 'last_checkpoint' in name else None
        return result if event is None else _WatchedFile(result, event, striker, seconds)

    def watched_remove(path: Any, *args: Any, **kwargs: Any) -> None:
        strikes = str(path).endswith('.pth') and striker.happens('removal')
        if strikes and striker.moment.part < 0.5:
            striker.strike()
        removed(path, *args, **kwargs)
        if strikes and striker.moment.part >= 0.5:
            striker.strike()

    def watched_replace(source: Any, target: Any, **kwargs: Any) -> None:
        replaced(source, target, **kwargs)
        if str(target).endswith('last_checkpoint'):
            striker.progress.saving = 0

    builtins.open = io.open = watched_open
    os.remove, os.replace = watched_remove, watched_replace
    try:
        yield
    finally:
        builtins.open = io.open = opened
        os.remove, os.replace = removed, replaced


class _WatchedFile:
    """A file that is written in chunks, one of which is the last before a kill."""

    def __init__(self, file: Any, event: str, striker: Striker, seconds: float) -> None:
        self._file, self._striker, self._seconds = file, striker, seconds
        self._is_chosen = striker.happens(event)
        striker.progress.writing = 1

    def write(self, data: Any) -> int:
        view = data if isinstance(data, str) else memoryview(data).cast('B')
        starts = range(0, len(view), CHUNK) if len(view) > CHUNK else [0]
        last = int(self._striker.moment.part * (len(starts) + 1)) if self._is_chosen else -1
        for number, start in enumerate(starts):
            if number == last:
                self._striker.strike()
            self._file.write(view[start:start + CHUNK])
            self._file.flush()
            if self._seconds:
                time.sleep(self._seconds)
        if last == len(starts):
            self._striker.strike()
        return len(view)

    def close(self) -> None:
        self._file.close()
        self._striker.progress.writing = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> '_WatchedFile':
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class Patience:
    """A time-out that counts the time in which this process ran.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self._left, self._last = seconds, time.monotonic()

    def is_over(self) -> bool:
        """Whether the time is over; a pause of the whole machine counts little."""
        now = time.monotonic()
        self._left -= min(now - self._last, 0.1)
        self._last = now
        return self._left < 0


def wait_for(moment: Optional[Moment], progress: Progress, has_ended: Callable[[], bool],
             patience: float = 240.0) -> bool:
    """Wait for a moment; return whether it came before the run ended."""
    end = Patience(patience)
    while not end.is_over():
        if has_ended():
            return False
        if moment is not None and _has_come(moment, progress):
            time.sleep(DELAYS.get(moment.event, 0.0) * moment.part)
            return not has_ended()
        time.sleep(0.001)
    raise TimeoutError(f'the run neither ended nor reached {moment} in {patience:g} s')


def _has_come(moment: Moment, progress: Progress) -> bool:
    if moment.event in INSIDE:
        return progress.struck == WAITING
    return moment.event == 'start' or (
        progress.resumed_at >= 0 and progress.step >= progress.resumed_at + moment.count)


def children_of(process: int) -> List[int]:
    """The child processes of a process."""
    with contextlib.suppress(OSError):
        threads = sorted(Path(f'/proc/{process}/task').iterdir())
        return [int(word) for thread in threads
                for word in (thread / 'children').read_text().split()]
    return []


def victims_of(moment: Moment, ranks: Sequence[int], launcher: Optional[int] = None) -> List[int]:
    """The processes that a moment kills."""
    if moment.victim == 'launcher':
        return [launcher]
    if moment.victim == 'all':
        return list(ranks)
    rank = ranks[moment.index % len(ranks)]
    if moment.victim == 'worker':
        return children_of(rank)[:1]
    return [rank]


def send(processes: Sequence[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes that may have ended."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
