"""What stops a run besides a kill: disks, limits, a process that stands still, a second run."""
import contextlib
import ctypes
import itertools
import resource
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List

from .moments import send

CLONE_NEWNS = 0x00020000  # from linux/sched.h


@dataclass(frozen=True)
class Target:
    """The run that an obstacle stops.

    Attributes:
        work_dir: Its work dir.
        ranks: Its processes.
        start_second: Starts another run in the same work dir; returns its exit code and output.
    """
    work_dir: Path
    ranks: List[int]
    start_second: Callable[[], Any]


@dataclass(frozen=True)
class Obstacle:
    """An obstacle that does nothing; the methods of its kinds do.

    Attributes:
        says: A part of a line that the run must print.
        run: Arguments of the scenario.
        ends_run: Whether the run ends.
    """
    says: str
    run: Dict[str, Any] = field(default_factory=dict)
    ends_run: bool = True

    def prepare(self, folder: Path) -> None:
        """Prepare the folder of the work dir, before all runs."""

    def enter(self) -> None:
        """Prepare a process of the run, in that process."""

    def strike(self, target: Target) -> str:
        """Stop a run; return what was said instead of its log, if it is not the log."""
        return ''

    def lift(self, target: Target) -> None:
        """Remove the obstacle, after the run ended."""

    def clean(self, folder: Path) -> None:
        """Undo :meth:`prepare`."""


def mount(*arguments: Any) -> None:
    """Mount a file system; needs root."""
    subprocess.run(['mount', *map(str, arguments)], check=True)


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with contextlib.suppress(OSError), path.open('wb', buffering=0) as file:
        while True:
            file.write(bytes(4096))


class FullDisk(Obstacle):
    """The disk of the work dir has no space left."""

    def prepare(self, folder: Path) -> None:
        """Mount a disk that is large enough for a run."""
        mount('-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', folder)

    def strike(self, target: Target) -> str:
        """Fill the disk."""
        fill(target.work_dir.parent / 'ballast')
        return ''

    def lift(self, target: Target) -> None:
        """Free the space."""
        (target.work_dir.parent / 'ballast').unlink()

    def clean(self, folder: Path) -> None:
        """Unmount the disk."""
        subprocess.run(['umount', str(folder)], check=True)


class ReadOnlyDisk(Obstacle):
    """The work dir becomes read-only, as a disk does after an error.

    The kernel does not remount a disk on which files are open for writing. A read-only mount
    above the work dir has the same effect on every file that is opened from then on.
    """

    def strike(self, target: Target) -> str:
        """Mount it again, read-only."""
        mount('--bind', target.work_dir, target.work_dir)
        mount('-o', 'remount,bind,ro', target.work_dir)
        return ''

    def lift(self, target: Target) -> None:
        """Make it writable."""
        subprocess.run(['umount', str(target.work_dir)], check=True)


class FileLimit(Obstacle):
    """A process may not open further files."""

    def strike(self, target: Target) -> str:
        """Set the limit to the number that the next file would get."""
        for rank in target.ranks:
            used = {int(path.name) for path in Path(f'/proc/{rank}/fd').iterdir()}
            _, hard = resource.prlimit(rank, resource.RLIMIT_NOFILE)
            limit = next(number for number in itertools.count() if number not in used)
            resource.prlimit(rank, resource.RLIMIT_NOFILE, (limit, hard))
        return ''


class FullSharedMemory(Obstacle):
    """The workers of the loader have no space in /dev/shm."""

    def enter(self) -> None:
        """Give this process a small /dev/shm of its own."""
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), 'no mount namespace of its own; run as root')
        mount('--make-rprivate', '/')
        mount('-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', '/dev/shm')

    def strike(self, target: Target) -> str:
        """Fill /dev/shm of the run."""
        fill(Path(f'/proc/{target.ranks[0]}/root/dev/shm/ballast'))
        return ''


class StoppedRank(Obstacle):
    """A process stands still for longer than a collective operation may take."""

    def strike(self, target: Target) -> str:
        """Stop the last process."""
        send(target.ranks[-1:], signal.SIGSTOP)
        return ''

    def lift(self, target: Target) -> None:
        """Let it run again; it must end by itself."""
        send(target.ranks[-1:], signal.SIGCONT)


class SecondRun(Obstacle):
    """Another run is started in the same work dir, and refused. The first one trains on."""

    def strike(self, target: Target) -> str:
        """Start the second run and wait for it."""
        code, output = target.start_second()
        return output if code == 1 else f'exit code {code}'


WORKERS = dict(options=dict(train_dataloader__num_workers=2,
                            train_dataloader__persistent_workers=True))
TIMEOUT = dict(processes=2, options=dict(env_cfg__dist_cfg__timeout=10))
OBSTACLES = {
    'a full disk': FullDisk('No space left on device'),
    'a read-only disk': ReadOnlyDisk('Read-only file system'),
    'a limit of open files': FileLimit('Too many open files'),
    'a full /dev/shm': FullSharedMemory('free some space in /dev/shm', WORKERS),
    '2 processes, one stopped': StoppedRank('another process of this run', TIMEOUT),
    'a second run in the work dir': SecondRun('is used by another run', ends_run=False),
}

