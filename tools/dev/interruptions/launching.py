"""Start the processes of a run and wait for them: forked ones, or torchrun for real."""
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional

from mmengine.config import Config

from .moments import (
    Moment,
    Patience,
    SavingHook,
    Striker,
    ValidationHook,
    children_of,
    send,
    watched_files,
)
from .scenarios import Scenario, config_of
from .small_runs import Progress, fork, free_port, join_group, train

# Seconds after every 64 KB that the runs of a comparison of checkpoint hooks write.
PAUSE = 0.003


class Launcher:
    """Starts runs of a scenario.

    Args:
        scenario: The scenario.
        folder: A folder for its files.
        data: The folder of ``make_shapes``.

    Attributes:
        log: The file with the output of all processes.
        progress: The progress of the run that was started last.
        torchrun: Its process of torchrun, if the scenario has one.
    """

    def __init__(self, scenario: Scenario, folder: Path, data: Path) -> None:
        self.scenario, self.folder, self.data = scenario, folder, data
        self.log = folder / 'log'
        self.progress = Progress(folder / 'progress' if scenario.launcher else None)
        self.torchrun: Optional[subprocess.Popen] = None
        self._configs: Dict[Path, Config] = {}

    def config(self, work_dir: Path) -> Config:
        """The config of a run, which is read once; the children have copies of it."""
        if work_dir not in self._configs:
            self._configs[work_dir] = config_of(self.scenario, self.data, work_dir)
        return self._configs[work_dir]

    def start(self, work_dir: Path, moment: Optional[Moment] = None) -> List[int]:
        """Start a run; return its processes."""
        cfg = self.config(work_dir)
        self.progress.clear()
        if self.scenario.launcher:
            return self._launch(cfg, moment)
        port = free_port()

        def work(rank: int) -> None:
            join_group(cfg, rank, self.scenario.processes, port)
            if self.scenario.obstacle:
                self.scenario.obstacle.enter()
            train_watched(cfg, self.progress, moment, rank,
                          PAUSE if self.scenario.is_baseline else 0.0)

        return [fork(lambda rank=rank: work(rank), self.log)
                for rank in range(self.scenario.processes)]

    def _launch(self, cfg: Config, moment: Optional[Moment]) -> List[int]:
        """Start torchrun for real, and wait for its processes."""
        path = self.folder / 'config.py'
        # Config.dump needs what prepare() replaces
        path.write_text(''.join(f'{key} = {value!r}\n' for key, value in cfg.to_dict().items()))
        command = [sys.executable, '-m', 'torch.distributed.run', '--standalone',
                   f'--nproc-per-node={self.scenario.processes}',
                   Path(__file__).with_name('rank.py'), path, self.folder / 'progress',
                   repr(tuple(moment) if moment else None)]
        with self.log.open('a') as log:
            self.torchrun = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        while self.torchrun.poll() is None:
            ranks = children_of(self.torchrun.pid)
            if len(ranks) == self.scenario.processes:
                return ranks
            time.sleep(0.01)
        raise RuntimeError(f'torchrun ended; see {self.log}')

    def wait_all(self, processes: List[int], patience: float = 300.0) -> List[Optional[int]]:
        """The exit codes of processes; None for one that did not end in time and was killed."""
        end = Patience(patience)
        codes: List[Optional[int]] = []
        if self.torchrun is not None:
            return self._wait_launched(processes, end)
        for process in processes:
            while not (status := os.waitpid(process, os.WNOHANG))[0]:
                if end.is_over():
                    send([process])
                    os.waitpid(process, 0)
                    break
                time.sleep(0.002)
            codes.append(os.waitstatus_to_exitcode(status[1]) if status[0] else None)
        return codes

    def _wait_launched(self, ranks: List[int], end: Patience) -> List[Optional[int]]:
        """Wait for torchrun and its processes, which are not children of this process."""
        while (self.torchrun.poll() is None or any(map(exists, ranks))) and not end.is_over():
            time.sleep(0.01)
        left = [process for process in ranks if exists(process)]
        send([*left, *([self.torchrun.pid] if self.torchrun.poll() is None else [])])
        return [None] * len(left) + [self.torchrun.wait()]

    def has_ended(self, processes: List[int]) -> bool:
        """Whether the first process of a run has ended; the others may end before it."""
        if self.torchrun is not None:
            return self.torchrun.poll() is not None
        return bool(os.waitid(os.P_PID, processes[0], os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def tail(self) -> str:
        """The end of the output of all processes."""
        return self.log.read_text()[-1500:] if self.log.exists() else ''


def train_watched(cfg: Config, progress: Progress, moment: Optional[Moment], rank: int,
                  pause: float = 0.0) -> None:
    """Train in this process; the first process of a run reports and stops at a moment."""
    if rank:
        return train(cfg, Progress())
    striker = Striker(moment, progress)
    with watched_files(Path(cfg.work_dir), striker, pause):
        train(cfg, progress, hooks=(ValidationHook(striker), SavingHook(progress)))


def exists(process: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False
