"""Kill a training run again and again, resume it, and count what was lost.

A small detector is trained on embedded shapes. Half of the kills (SIGKILL) come at
random moments, half while a checkpoint is being written; the disk is made slow so
that this takes a while. mmrla's hook and mmengine's own get the same kills:

    python tools/dev/chaos.py --kills 100
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
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import runner as mmengine_runner_module

import mmrla  # noqa: F401  (registers the modules and mends the stack)
from mmrla.datasets import make_shapes
from mmrla.weights.errors import CheckpointError
from mmrla.weights.writing import verify_checkpoint

REPO = Path(__file__).resolve().parents[2]
CONFIG = REPO / 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
CHUNK = 1 << 16


def prepare() -> None:
    """Do once what every child would do, and leave out what takes longest.

    mmengine formats the whole config for every checkpoint, and asks compilers
    for their versions at every start.
    """
    torch.set_num_threads(1)  # a child of more threads may hang
    register_all_modules()
    Config.pretty_text = property(lambda cfg: repr(cfg._cfg_dict.to_dict()))
    mmengine_runner_module.collect_env = dict


class Progress:
    """What a child did, in memory that outlives it."""

    FIELDS = ('step', 'resumed_at', 'saves', 'writing')

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * len(self.FIELDS))
        self.clear()

    def clear(self) -> None:
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
    """Tell the parent where the run is."""

    priority = 'VERY_HIGH'

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before_train(self, runner) -> None:
        """Tell from where it goes on."""
        self.progress.resumed_at = runner.iter

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Tell how many steps were made."""
        self.progress.step = runner.iter + 1


class ActHook(Hook):
    """Do something after a step, once it is saved if it is.

    Args:
        act: Called with the number of steps made.
    """

    priority = 'LOWEST'

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Do it."""
        self.act(runner.iter + 1)


def small_config(data: Path, work_dir: Path, validate: bool = False, **options: Any) -> Config:
    """The embedded detector, small enough for a step in a tenth of a second.

    Args:
        data: The set of ``make_shapes``.
        work_dir: Where the run goes.
        validate: Whether to validate.
        **options: Settings by their names, with __ for the dots between them.
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
    runner = RUNNERS.build(cfg)
    runner.register_hook(ReportHook(progress))
    runner.register_hook(ActHook(act))
    runner.train()


@contextlib.contextmanager
def slow_disk(folder: Path, progress: Progress, seconds: float) -> Iterator[None]:
    """Write files below a folder in pieces, with a pause after each."""
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
    """A file that takes its time, and tells when it is being written."""

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
    """Do something in a child, its output in a file; the child's process number.

    A child that has everything imported starts in no time.
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
        started: Whether the child started from what the one before had left. If
            not it was cleared away for another child.
        resumed_at: The step that the child went on from.
        reached: The step that it was at when it was killed.
        writing: Whether it was writing a checkpoint then.
        pointer: What the pointer names afterwards: 'none', 'readable' or 'unreadable'.
    """
    started: bool
    resumed_at: int
    reached: int
    writing: bool
    pointer: str


def kill_once(start: Callable[[], int], progress: Progress, rng: random.Random, aimed: bool,
              work_dir: Path, patience: float = 120.0) -> Cycle:
    """Start a child, kill it at some moment and look at what it left."""
    moment = rng.randint(1, 4), rng.random()
    for started in (True, False):
        progress.clear()
        child = start()
        status = _wait_for_moment(child, progress, *moment, aimed, patience)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Cycle(started, progress.resumed_at, max(progress.step, progress.resumed_at),
                         bool(progress.writing), pointer_state(work_dir))  # -1, -1: not yet begun
        shutil.rmtree(work_dir, ignore_errors=True)
    raise RuntimeError(f'a run in an empty folder ended by itself: see the log beside {work_dir}')


def _wait_for_moment(child: int, progress: Progress, save: int, part: float, aimed: bool,
                     patience: float) -> Optional[int]:
    """Wait until it is time to kill; the status of a child that ended before."""
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
    """Whether the file ``last_checkpoint`` names a checkpoint that can be read."""
    pointer = work_dir / 'last_checkpoint'
    if not pointer.exists():
        return 'none'
    try:
        verify_checkpoint(Path(pointer.read_text().strip()))
    except (CheckpointError, OSError):
        return 'unreadable'
    return 'readable'


def summarise(cycles: List[Cycle], interval: int) -> Dict[str, int]:
    """Count what happened; a cycle is judged by how the next one goes on."""
    pairs = list(itertools.pairwise(cycles))
    begun = [cycle for cycle in cycles if cycle.resumed_at >= 0]  # the others lost nothing
    lost = [before.reached - after.resumed_at for before, after in itertools.pairwise(begun)]
    return {
        'kills': len(cycles) - 1,
        'of them while a checkpoint was written': sum(cycle.writing for cycle in cycles[:-1]),
        'started again by itself': sum(after.started for _, after in pairs),
        'could not resume: all work lost': sum(not after.started for _, after in pairs),
        'more than one interval lost': sum(steps > interval for steps in lost),
        'most steps lost': max(lost, default=0),
        'pointer names an unreadable file': sum(
            before.pointer == 'unreadable' for before, _ in pairs),
    }


def run(hook: str, kills: int, interval: int, keep: int, seed: int, seconds: float,
        folder: Path, data: Path) -> Dict[str, int]:
    """Kill runs with one of the hooks, and count."""
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
    moment = 'writing' if cycle.writing else 'else'
    start = '' if cycle.started else 'could not resume, began anew; '
    print(f'{hook} {len(cycles) - 1}/{kills}: {start}from step {cycle.resumed_at} to '
          f'{cycle.reached}, killed ({moment}), pointer {cycle.pointer}', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--kills', type=int, default=100, help='how many for each hook')
    parser.add_argument('--interval', type=int, default=3, help='steps between checkpoints')
    parser.add_argument('--keep', type=int, default=1, help='max_keep_ckpts')
    parser.add_argument('--seed', type=int, default=0, help='of the moments')
    parser.add_argument('--pause', type=float, default=0.003, metavar='SECONDS',
                        help='for every 64 KB that are written')
    parser.add_argument('--hooks', nargs='+', default=['SafeCheckpointHook', 'CheckpointHook'])
    args = parser.parse_args()
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
                                     'more than one interval lost',
                                     'pointer names an unreadable file')):
        sys.exit('SafeCheckpointHook lost something')


if __name__ == '__main__':
    main()
