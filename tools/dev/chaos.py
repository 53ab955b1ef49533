"""Kill a training run repeatedly, resume it, and count the lost work.

    python tools/dev/chaos.py --kills 100

The run trains a small detector on the embedded shapes. Half of the kills (SIGKILL) come
at random times, and half while a checkpoint is written. Writes are slowed down, so that
a checkpoint takes long enough. The checkpoint hooks of mmrla and of mmengine get the
same kills.
"""
import argparse
import builtins
import contextlib
import io
import itertools
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import runner as mmengine_runner_module

import mmrla  # noqa: F401  (registers the modules)
from mmrla.commands.paths import REPO
from mmrla.commands.runner import build_runner
from mmrla.datasets import make_shapes
from mmrla.weights.errors import CheckpointError
from mmrla.weights.writing import verify_checkpoint

CONFIG = REPO / 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
CHUNK = 1 << 16


def prepare() -> None:
    """Do once what every child would do, and replace two slow functions.

    mmengine formats the whole config for every checkpoint, and runs compilers to
    get their versions at every start.
    """
    torch.set_num_threads(1)  # a child with more threads may hang
    register_all_modules()
    Config.pretty_text = property(lambda cfg: repr(cfg._cfg_dict.to_dict()))
    mmengine_runner_module.collect_env = dict


class Progress:
    """The progress of a child process, in memory that survives its death."""

    FIELDS = ('step', 'resumed_at', 'saves', 'writing')

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * len(self.FIELDS))
        self.clear()

    def clear(self) -> None:
        """Reset all fields."""
        for name in self.FIELDS:
            setattr(self, name, -1 if name == 'resumed_at' else 0)

    def __getattr__(self, name: str) -> int:
        if name not in Progress.FIELDS:
            raise AttributeError(name)
        return struct.unpack_from('q', self._memory, 8 * self.FIELDS.index(name))[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Progress.FIELDS:
            struct.pack_into('q', self._memory, 8 * self.FIELDS.index(name), value)
        else:
            super().__setattr__(name, value)


class ReportHook(Hook):
    """Report the progress of the run to the parent process."""

    priority = 'VERY_HIGH'

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before_train(self, runner) -> None:
        """Report the iteration that the run starts from."""
        self.progress.resumed_at = runner.iter

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Report the number of finished iterations."""
        self.progress.step = runner.iter + 1


class ActHook(Hook):
    """Call a function after each iteration, and after its checkpoint.

    Args:
        act: Function of the number of finished iterations.
    """

    priority = 'LOWEST'

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Call the function."""
        self.act(runner.iter + 1)


def small_config(data: Path, work_dir: Path, validate: bool = False, **options: Any) -> Config:
    """Return the config of a small detector, whose iteration takes 0.1 s.

    Args:
        data: Folder of ``make_shapes``.
        work_dir: Work dir of the run.
        validate: Whether to validate.
        **options: Settings of the config, with ``__`` instead of dots.
    """
    cfg = Config.fromfile(CONFIG)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        loader.dataset.data_root = f'{data}/'
        for transform in loader.dataset.pipeline:
            if transform.type == 'Resize':
                transform.scale = (64, 64)
    cfg.val_evaluator.ann_file = f'{data}/annotations/instances_val2017.json'
    cfg.merge_from_dict({
        'model.backbone.base_channels': 8, 'model.neck.in_channels': [8, 16, 32, 64],
        'model.roi_head.bbox_head.fc_out_channels': 32,
        'model.train_cfg.rpn_proposal': dict(nms_pre=100, max_per_img=50),
        'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10)],
        'log_level': 'WARNING', 'default_hooks.logger.interval': 1,
        'test_dataloader': None, 'test_cfg': None, 'test_evaluator': None,
        'work_dir': str(work_dir),
        **{name.replace('__', '.'): value for name, value in options.items()}})
    if not validate:
        cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None)
        cfg.train_cfg.pop('val_interval', None)
    cfg.default_hooks.pop('visualization', None)
    return cfg


def train(cfg: Config, progress: Progress, act: Callable[[int], None] = lambda step: None) -> None:
    """Train in this process."""
    runner = build_runner(cfg)
    runner.register_hook(ReportHook(progress))
    runner.register_hook(ActHook(act))
    runner.train()


@contextlib.contextmanager
def slow_disk(folder: Path, progress: Progress, seconds: float) -> Iterator[None]:
    """Write checkpoints below a folder in chunks, with a pause after each."""
    original = builtins.open

    def slow_open(file, mode='r', *args, **kwargs):
        opened = original(file, mode, *args, **kwargs)
        name = str(file)
        if 'w' not in mode or not name.startswith(str(folder)) or not (
                '.pth' in name or 'last_checkpoint' in name):
            return opened
        return _SlowFile(opened, progress, seconds)

    builtins.open = io.open = slow_open
    try:
        yield
    finally:
        builtins.open = io.open = original


class _SlowFile:
    """A file with slow writes, which reports when it is open."""

    def __init__(self, file: Any, progress: Progress, seconds: float) -> None:
        self._file, self._progress, self._seconds = file, progress, seconds
        self._unpaid = 0
        progress.saves += 1
        progress.writing = 1
        time.sleep(seconds)

    def write(self, data: Any) -> int:
        view = data if isinstance(data, str) else memoryview(data).cast('B')
        for start in range(0, len(view), CHUNK):
            self._file.write(view[start:start + CHUNK])
            self._file.flush()
            self._unpaid += len(view[start:start + CHUNK])
            if self._unpaid >= CHUNK:
                time.sleep(self._seconds)
                self._unpaid -= CHUNK
        return len(view)

    def close(self) -> None:
        self._file.close()
        self._progress.writing = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> '_SlowFile':
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def fork(work: Callable[[], None], log: Path) -> int:
    """Run a function in a forked child process, which needs no time for imports.

    Args:
        work: The function.
        log: File for the output.

    Returns:
        int: The process id of the child.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (open(number, 'w', closefd=False) for number in (1, 2))
        work()
        code = 0
    except SystemExit as stop:
        print(stop)
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Cycle(NamedTuple):
    """One kill.

    Attributes:
        started: Whether the child could resume from the work dir of the previous
            child. If not, the work dir was removed and another child started.
        resumed_at: The iteration that the child started from.
        reached: The iteration at which it was killed.
        writing: Whether it was writing a checkpoint when it was killed.
        pointer: State of the file ``last_checkpoint`` after the kill: 'none',
            'readable' or 'unreadable'.
    """
    started: bool
    resumed_at: int
    reached: int
    writing: bool
    pointer: str


def kill_once(start: Callable[[], int], progress: Progress, rng: random.Random, aimed: bool,
              work_dir: Path, patience: float = 120.0) -> Cycle:
    """Start a child, kill it and inspect its work dir."""
    moment = rng.randint(1, 4), rng.random()
    for started in (True, False):
        progress.clear()
        child = start()
        status = _wait_for_moment(child, progress, *moment, aimed, patience)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Cycle(started, progress.resumed_at, max(progress.step, progress.resumed_at),
                         bool(progress.writing), pointer_state(work_dir))  # -1, -1: not started
        shutil.rmtree(work_dir, ignore_errors=True)
    raise RuntimeError(f'a run in an empty work dir failed; see {work_dir}.log')


def _wait_for_moment(child: int, progress: Progress, save: int, part: float, aimed: bool,
                     patience: float) -> Optional[int]:
    """Wait for the time of the kill; return the status of a child that ended before."""
    end = time.monotonic() + patience
    moment = None
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        now = time.monotonic()
        if moment is None and aimed and progress.writing and progress.saves >= save:
            moment = now + part * 0.1
        elif moment is None and not aimed and progress.resumed_at >= 0:
            moment = now + part * 1.5
        if moment is not None and now >= moment and (progress.writing or not aimed):
            return None
        time.sleep(0.001)
    return None


def pointer_state(work_dir: Path) -> str:
    """Return whether ``last_checkpoint`` names a readable checkpoint."""
    pointer = work_dir / 'last_checkpoint'
    if not pointer.exists():
        return 'none'
    try:
        verify_checkpoint(Path(pointer.read_text().strip()))
    except (CheckpointError, OSError):
        return 'unreadable'
    return 'readable'


def summarise(cycles: List[Cycle], interval: int) -> Dict[str, int]:
    """Count the outcomes; the next cycle shows what a kill has lost."""
    pairs = list(itertools.pairwise(cycles))
    begun = [cycle for cycle in cycles if cycle.resumed_at >= 0]  # the others have nothing to lose
    lost = [before.reached - after.resumed_at for before, after in itertools.pairwise(begun)]
    return {
        'kills': len(cycles) - 1,
        'kills while a checkpoint was written': sum(cycle.writing for cycle in cycles[:-1]),
        'resumed': sum(after.started for _, after in pairs),
        'could not resume: all work lost': sum(not after.started for _, after in pairs),
        # the second one while its checkpoint was written in the background
        'more than two intervals lost': sum(steps > 2 * interval for steps in lost),
        'most iterations lost': max(lost, default=0),
        'last_checkpoint names an unreadable file': sum(
            before.pointer == 'unreadable' for before, _ in pairs),
    }


def run(hook: str, kills: int, interval: int, keep: int, seed: int, seconds: float,
        folder: Path, data: Path) -> Dict[str, int]:
    """Kill runs with one of the hooks, and count the outcomes."""
    work_dir, progress, rng = folder / hook, Progress(), random.Random(seed)
    checkpoint = dict(type=hook, by_epoch=False, interval=interval, max_keep_ckpts=keep)

    def child() -> None:
        cfg = small_config(data, work_dir, train_cfg__max_epochs=10**6, resume=True,
                           runner_type='Runner' if hook == 'CheckpointHook' else 'RLARunner',
                           default_hooks__checkpoint=dict(_delete_=True, **checkpoint))
        with slow_disk(work_dir, progress, seconds):
            train(cfg, progress)

    cycles: List[Cycle] = []
    while len(cycles) < kills + 1:
        aimed = len(cycles) % 2 == 0 or rng.random() < 0.2
        cycles.append(kill_once(lambda: fork(child, folder / f'{hook}.log'), progress, rng,
                                aimed, work_dir))
        _remove_logs(work_dir)
        _show(hook, cycles, kills, cycles[-1])
    return summarise(cycles, interval)


def _remove_logs(work_dir: Path) -> None:
    for path in work_dir.iterdir() if work_dir.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _show(hook: str, cycles: List[Cycle], kills: int, cycle: Cycle) -> None:
    moment = ' while writing' if cycle.writing else ''
    start = '' if cycle.started else 'could not resume, started from scratch; '
    print(f'{hook} {len(cycles) - 1}/{kills}: {start}iteration {cycle.resumed_at} to '
          f'{cycle.reached}, killed{moment}, last_checkpoint: {cycle.pointer}', flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--kills', type=int, default=100, help='kills per hook')
    parser.add_argument('--interval', type=int, default=3, help='iterations between checkpoints')
    parser.add_argument('--keep', type=int, default=1, help='max_keep_ckpts of the hook')
    parser.add_argument('--seed', type=int, default=0, help='seed of the times of the kills')
    parser.add_argument('--pause', type=float, default=0.003, metavar='SECONDS',
                        help='pause after every 64 KB of a checkpoint')
    parser.add_argument('--hooks', nargs='+', default=['SafeCheckpointHook', 'CheckpointHook'],
                        help='checkpoint hooks to test')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    prepare()
    with tempfile.TemporaryDirectory(prefix='chaos-') as folder:
        data = make_shapes(Path(folder) / 'shapes', train=16, val=2)
        tables = {hook: run(hook, args.kills, args.interval, args.keep, args.seed, args.pause,
                            Path(folder), data) for hook in args.hooks}
    print(f'\n{"":42}' + ''.join(f'{hook:>20}' for hook in tables))
    for row in next(iter(tables.values())):
        print(f'{row:42}' + ''.join(f'{table[row]:20}' for table in tables.values()))
    ours = tables.get('SafeCheckpointHook', {})
    if any(ours.get(row) for row in ('could not resume: all work lost',
                                     'more than two intervals lost',
                                     'last_checkpoint names an unreadable file')):
        sys.exit('SafeCheckpointHook lost work')


if __name__ == '__main__':
    main()
