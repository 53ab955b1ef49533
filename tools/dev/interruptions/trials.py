"""Interrupt runs of a scenario, resume them, and compare them with an undisturbed run."""
import contextlib
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from .equality import compare, pointer_state, unreadable_files
from .launching import Launcher, exists
from .moments import DONE, Moment, draw, send, victims_of, wait_for
from .obstacles import Target
from .scenarios import SCENARIOS
from .small_runs import Progress, fork, train

# Seconds that the other processes have to end when one has died.
PATIENCE = 30.0


@dataclass
class Cycle:
    """One start of a run, up to its kill.

    Attributes:
        moment: What was done, and when.
        resumed_at: The step that the run started from; -1 if it did not come to that.
        reached: The step at which it was killed.
        saving: The step of the checkpoint that was being written; 0 if there was none.
        is_writing: Whether a file was open at that time.
        pointer: The state of ``last_checkpoint`` after the kill.
        unreadable: Incomplete checkpoints after the kill.
    """
    moment: Moment
    resumed_at: int
    reached: int
    saving: int
    is_writing: bool
    pointer: str
    unreadable: List[str]


@dataclass
class Run:
    """The result of one run with all its kills.

    Attributes:
        cycles: Its kills.
        final: The step that its last start resumed at; -1 if it could not resume.
        problems: What must not happen, in words.
        different: By part of the run, what differs from the undisturbed run.
    """
    cycles: List[Cycle] = field(default_factory=list)
    final: int = -1
    problems: List[str] = field(default_factory=list)
    different: Dict[str, List[str]] = field(default_factory=dict)

    def losses(self) -> List[Tuple[Cycle, int]]:
        """The kills of runs that had begun to train, and the steps that each has lost."""
        begun = [cycle for cycle in self.cycles if cycle.resumed_at >= 0]
        starts = [*(cycle.resumed_at for cycle in begun), self.final][1:]
        return [(cycle, cycle.reached - start) for cycle, start in zip(begun, starts, strict=True)
                if start >= 0] if begun else []


class Trial:
    """The runs of one scenario.

    Args:
        name: The scenario.
        folder: A folder for its files.
        data: The folder of ``make_shapes``.
    """

    def __init__(self, name: str, folder: Path, data: Path) -> None:
        self.name, self.scenario = name, SCENARIOS[name]
        self.folder, self.disk = folder, folder / 'disk'
        self.disk.mkdir()
        self.launcher = Launcher(self.scenario, folder, data)
        self.progress = self.launcher.progress

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare the disk of an obstacle, and undo it afterwards."""
        obstacle = self.scenario.obstacle
        if obstacle is None:
            yield
            return
        obstacle.prepare(self.disk)
        try:
            yield
        finally:
            obstacle.clean(self.disk)

    def make_straight(self) -> Path:
        """Make the undisturbed run; return its work dir."""
        work_dir = self.folder / 'straight'
        if any(self.launcher.wait_all(self.launcher.start(work_dir))):
            raise RuntimeError(
                f'the undisturbed run of {self.name!r} failed:\n{self.launcher.tail()}')
        return work_dir

    def make_run(self, rng: random.Random, kills: int, straight: Path) -> Run:
        """Make a run that is killed; compare it with the undisturbed one.

        Args:
            rng: Draws the moments.
            kills: The most kills.
            straight: The work dir of the undisturbed run.
        """
        run, work_dir = Run(), self.disk / 'run'
        kills = min(kills, self.scenario.kills_per_run)
        shutil.rmtree(work_dir, ignore_errors=True)
        while True:
            moment = self._draw(rng) if len(run.cycles) < kills else None
            processes = self.launcher.start(work_dir, moment)
            if not self._comes(moment, processes, run):
                break
            run.cycles.append(self._interrupt(moment, processes, work_dir, run))
            if self.scenario.obstacle and not self.scenario.obstacle.ends_run:
                break
        codes = self.launcher.wait_all(processes)
        run.final = self.progress.resumed_at
        if any(codes):
            run.problems.append(f'exit codes {codes} after {len(run.cycles)} kill(s)')
        elif not self.scenario.is_baseline:
            run.different = {part: names for part, names in compare(straight, work_dir).items()
                             if names}
        return run

    def _draw(self, rng: random.Random) -> Moment:
        moment = draw(rng, self.scenario.events, self.scenario.victims, self.scenario.processes)
        if moment.event == 'start' and self.scenario.processes > 1:
            # a process that dies before all have met is for the launcher to notice
            moment = moment._replace(victim='all')
        return moment

    def _comes(self, moment: Optional[Moment], processes: List[int], run: Run) -> bool:
        """Wait for a moment; return whether it came, and there is somebody to kill."""
        try:
            comes = wait_for(moment, self.progress, lambda: self.launcher.has_ended(processes))
        except TimeoutError as error:
            run.problems.append(str(error))
            send(processes)
            return False
        if comes and self._victims(moment, processes):
            return True
        self.progress.struck = DONE
        return False

    def _victims(self, moment: Moment, processes: List[int]) -> List[int]:
        """The processes to kill that still run; at the end of a run there may be none."""
        torchrun = self.launcher.torchrun
        return [process for process in victims_of(moment, processes, torchrun and torchrun.pid)
                if exists(process)]

    def _interrupt(self, moment: Moment, processes: List[int], work_dir: Path, run: Run) -> Cycle:
        """Kill, or put up the obstacle, and look at what is left."""
        progress, obstacle = self.progress, self.scenario.obstacle
        writing = bool(progress.writing)
        if obstacle is None:
            send(self._victims(moment, processes))
            progress.struck = DONE
            self._wait_after_kill(processes, run)
        else:
            self._obstruct(processes, work_dir, run)
        trains_on = obstacle is not None and not obstacle.ends_run  # and loses nothing
        reached = progress.resumed_at if trains_on else progress.reached
        return Cycle(moment, progress.resumed_at, reached, progress.saving, writing,
                     pointer_state(work_dir), unreadable_files(work_dir))

    def _wait_after_kill(self, processes: List[int], run: Run) -> None:
        codes = self.launcher.wait_all(processes, PATIENCE)
        if None in codes:
            run.problems.append(f'processes stayed for {PATIENCE:g} s after a kill: {codes}')

    def _obstruct(self, processes: List[int], work_dir: Path, run: Run) -> None:
        obstacle = self.scenario.obstacle
        written = self.launcher.log.stat().st_size
        target = Target(work_dir, processes, lambda: self._second(work_dir))
        output = obstacle.strike(target)
        if obstacle.ends_run:
            first = self.launcher.wait_all(processes[:1], PATIENCE)
            obstacle.lift(target)
            codes = first + self.launcher.wait_all(processes[1:], PATIENCE)
            if not all(code and code > 0 for code in codes):
                run.problems.append(f'exit codes {codes} with {self.name}')
            output = self.launcher.log.read_text()[written:]
        if obstacle.says not in output:
            run.problems.append(f'nothing says {obstacle.says!r}: {output[-500:]}')

    def _second(self, work_dir: Path) -> Tuple[int, str]:
        """Start a second run in a work dir."""
        cfg, log = self.launcher.config(work_dir), self.folder / 'second.log'
        child = fork(lambda: train(cfg, Progress()), log)
        return self.launcher.wait_all([child])[0], log.read_text()
