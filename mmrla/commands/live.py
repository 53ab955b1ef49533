"""What ``mmrla train`` and ``mmrla test`` show: a summary, a progress bar, the results.

mmengine's log goes to the log file. ``MMRLA_SCREEN=log`` shows it on the screen instead, as
``tools/train.py`` and ``tools/test.py`` do.
"""
import contextlib
import logging
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from mmrla.evaluation.report.runs import describe_backbone, describe_weights

SCREEN = 'MMRLA_SCREEN'
WIDE = 76  # columns of a screen that has room for more than the loss beside the bar
FIGURES = (('mAP', 'AP'), ('mAP_50', 'AP50'), ('mAP_75', 'AP75'), ('mAP_s', 'small'),
           ('mAP_m', 'medium'), ('mAP_l', 'large'))


def is_quiet() -> bool:
    """Return whether the log goes to the log file only."""
    return os.environ.get(SCREEN) == 'summary'


def short_path(path: str) -> str:
    """A path relative to the current folder, if it is below it."""
    relative = os.path.relpath(path) if path else ''
    return str(path) if relative.startswith('..') else relative


def counted(count: int, name: str) -> str:
    """A number and what it counts, such as 2 processes."""
    return f'{count} {name}' if count == 1 else f'{count} {name}{"es" if name[-1] == "s" else "s"}'


class QuietLogs:
    """A runner whose log shows errors only on the screen; a mixin for runners."""

    def build_logger(self, *args, **kwargs) -> logging.Logger:
        """Build the logger, and keep its log file as it is."""
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.setLevel(logging.ERROR)
        return logger


def quiet_runner(name: str) -> str:
    """Register a quiet form of a runner, and return its name.

    Args:
        name: The registered name of the runner.
    """
    quiet = f'Quiet{name}'
    if quiet not in RUNNERS.module_dict:
        kind = type(quiet, (QuietLogs, RUNNERS.get(name)), {})
        RUNNERS.register_module(name=quiet, module=kind)
    return quiet


class _LogFile:
    """A text stream that writes into the log file of a runner."""

    def __init__(self, logger: logging.Logger) -> None:
        self.handlers = [handler for handler in logger.handlers
                         if isinstance(handler, logging.FileHandler)]

    def write(self, text: str) -> int:
        for handler in self.handlers:
            if handler.stream is not None:
                handler.stream.write(text)
        return len(text)

    def flush(self) -> None:
        for handler in self.handlers:
            handler.flush()


@contextlib.contextmanager
def printed_to_log(logger: logging.Logger) -> Iterator[None]:
    """Send what other packages print, and Python's warnings, to the log file."""
    warnings = logging.getLogger('py.warnings')
    files = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    before, propagate = list(warnings.handlers), warnings.propagate
    warnings.handlers, warnings.propagate = files or [logging.NullHandler()], False
    logging.captureWarnings(True)
    try:
        with contextlib.redirect_stdout(_LogFile(logger)):
            yield
    finally:
        logging.captureWarnings(False)
        warnings.handlers, warnings.propagate = before, propagate


class LiveScreen(Hook):
    """Shows a run on the terminal.

    Args:
        command: ``train`` or ``test``.
        config: The name of the config.
    """
    priority = 'LOWEST'

    def __init__(self, command: str, config: str) -> None:
        self.command, self.config = command, config
        self.console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.bar: Optional[Progress] = None
        self.task: Any = None
        self.started = time.time()
        self.headings: List[str] = []

    # Summary

    def before_run(self, runner: Runner) -> None:
        """Say what is run."""
        self.started = time.time()
        self.console.print(Text.assemble((f'mmrla {self.command}', 'bold'), f' {self.config}'),
                           soft_wrap=True)
        for name, text in self.facts(runner):
            self.console.print(f'  {name:<9} {text}', soft_wrap=True)

    def facts(self, runner: Runner) -> List[Tuple[str, str]]:
        """What is trained, from which weights, on what, and where it is written."""
        cfg, model = runner.cfg, getattr(runner.model, 'module', runner.model)
        values = sum(parameter.numel() for parameter in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        facts = [('model', f'{type(model).__name__}, {describe_backbone(cfg)}, '
                  f'{values / 1e6:.1f} M parameters'
                  + (f', {trained / 1e6:.1f} M trained' if trained < values else '')),
                 ('weights', describe_weights(cfg))]
        if self.command == 'train':
            facts += [('data', self._data(runner.train_dataloader)),
                      ('schedule', self._schedule(runner))]
            if runner.val_loop is not None:
                facts.append(('validated', self._data(runner.val_dataloader)))
        else:
            facts.append(('data', self._data(runner.test_dataloader)))
        device = get_device()
        if device == 'cuda':
            device = f'{get_world_size()} x {torch.cuda.get_device_name()}'
        else:
            threads = torch.get_num_threads()
            device = (f'{device}, {counted(get_world_size(), "process")}, '
                      f'{counted(threads, "thread")} each')
        return [*facts, ('device', device),
                ('written', f'{short_path(runner.work_dir)}, log in {runner.timestamp}/')]

    @staticmethod
    def _data(loader: Any) -> str:
        dataset = loader.dataset
        inner = dataset
        while hasattr(inner, 'dataset'):
            inner = inner.dataset
        classes = (getattr(dataset, 'metainfo', None) or {}).get('classes') or ()
        place = getattr(inner, 'ann_file', '') or getattr(inner, 'data_root', '')
        batch = loader.batch_sampler.batch_size if loader.batch_sampler else 1
        return (f'{len(dataset):,} images, {len(classes)} classes, batches of {batch} '
                f'({short_path(place)})')

    @staticmethod
    def _schedule(runner: Runner) -> str:
        optimizer = runner.optim_wrapper.optimizer
        group = optimizer.param_groups[0]
        return (f'{counted(runner.max_epochs, "epoch")}, {runner.max_iters:,} iterations, '
                f'{type(optimizer).__name__} at {group.get("initial_lr", group["lr"]):g}'
                + (f', continued at epoch {runner.epoch + 1}' if runner.epoch else ''))

    # Progress

    def _start(self, total: int, done: int = 0) -> None:
        columns = [TextColumn('{task.description}'), BarColumn(bar_width=28),
                   MofNCompleteColumn(), TextColumn('{task.fields[text]}'), TextColumn('left'),
                   TimeRemainingColumn()]
        # What is printed meanwhile goes to the log file, see printed_to_log.
        self.bar = Progress(*columns, console=self.console, transient=True,
                            redirect_stdout=False, redirect_stderr=False,
                            disable=not self.console.is_terminal)
        self.task = self.bar.add_task(self.command, total=total, completed=done, text='')
        self.bar.start()

    def stop(self) -> None:
        """Take the bar off the screen."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def before_train(self, runner: Runner) -> None:
        """Start the bar."""
        self._start(runner.max_iters, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Optional[dict] = None) -> None:
        """Update the bar."""
        if self.bar is None:
            return
        self.bar.update(self.task, completed=runner.iter + 1, text=self._state(runner),
                        description=f'epoch {runner.epoch + 1}/{runner.max_epochs}')

    def _state(self, runner: Runner) -> str:
        """Loss, learning rate and memory; a narrow screen has room for the loss only."""
        history = runner.message_hub.log_scalars
        texts = [f'loss {history["train/loss"].mean(50):.3f}'] if 'train/loss' in history else []
        if self.console.width >= WIDE:
            texts.append(f'rate {runner.optim_wrapper.param_groups[0]["lr"]:.2g}')
            if torch.cuda.is_available():
                texts.append(f'{torch.cuda.max_memory_allocated() / 2**30:.1f} GB')
        return '  '.join(texts)

    def before_val_epoch(self, runner: Runner) -> None:
        """Say that the bar rests."""
        if self.bar is not None:
            self.bar.update(self.task, description='validate')

    def after_val_epoch(self, runner: Runner, metrics: Optional[Dict[str, float]] = None) -> None:
        """Add a row to the table."""
        history = runner.message_hub.log_scalars
        loss = f'{history["train/loss"].mean(50):.3f}' if 'train/loss' in history else ''
        first = [('epoch', str(runner.epoch)), ('loss', loss)]
        self._row(first + figures(metrics or {}) + [('minutes', self._minutes())])

    def _minutes(self) -> str:
        return f'{(time.time() - self.started) / 60:.1f}'

    def _row(self, cells: List[Tuple[str, str]]) -> None:
        """Print a row; before the first one, the headings."""
        if self.console.is_terminal:
            cells = fitting(cells, self.console.width)
        headings = [name for name, _ in cells]
        if headings != self.headings:
            self.console.print(Text(line_of(cells, 0), 'bold'), soft_wrap=True)
            self.headings = headings
        self.console.print(line_of(cells, 1), soft_wrap=True)

    def after_train(self, runner: Runner) -> None:
        """Say where the result is."""
        self.stop()
        folder = short_path(runner.work_dir)
        self.console.print(f'done in {self._minutes()} minutes. Next:\n'
                           f'  mmrla report {folder}\n'
                           f'  mmrla predict {folder} IMAGES', soft_wrap=True)

    # Testing

    def before_test_epoch(self, runner: Runner) -> None:
        """Start the bar."""
        self._start(len(runner.test_dataloader))

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                        outputs: Any = None) -> None:
        """Update the bar."""
        if self.bar is not None:
            self.bar.update(self.task, completed=batch_idx + 1)

    def after_test_epoch(self, runner: Runner, metrics: Optional[Dict[str, float]] = None
                         ) -> None:
        """Print the figures."""
        self.stop()
        self._row(figures(metrics or {}) + [('minutes', self._minutes())])


def figures(metrics: Dict[str, float]) -> List[Tuple[str, str]]:
    """The figures of an evaluation as (heading, text): COCO's in percent, others as they are."""
    cells = []
    for kind in ('bbox', 'segm'):
        for key, name in FIGURES:
            value = metrics.get(f'coco/{kind}_{key}')
            if value is not None and value >= 0:
                cells.append((name if kind == 'bbox' else f'mask {name}', f'{100 * value:.1f}'))
    if cells:
        return cells
    return [(name.rpartition('/')[2][:8], f'{value:.4g}') for name, value in metrics.items()
            if isinstance(value, (int, float)) and 'time' not in name][:6]


def column_width(cell: Tuple[str, str]) -> int:
    """The columns on the screen that a cell of the table takes."""
    return max(8, len(cell[0]) + 1)


def fitting(cells: List[Tuple[str, str]], width: int) -> List[Tuple[str, str]]:
    """Leave out figures until a row fits on the screen; the last cell is the time and stays."""
    cells = list(cells)
    while len(cells) > 2 and sum(map(column_width, cells)) > width:
        del cells[-2]
    return cells


def line_of(cells: List[Tuple[str, str]], part: int) -> str:
    """A line of the table: the headings (0) or the texts (1)."""
    return ''.join(f'{cell[part]:>{column_width(cell)}}' for cell in cells)


@contextlib.contextmanager
def shown(runner: Runner, command: str, config: str) -> Iterator[None]:
    """Show a run on the screen while it lasts, unless its log is shown.

    Args:
        runner: What runs.
        command: ``train`` or ``test``.
        config: The name of the config.
    """
    if not is_quiet():
        yield
        return
    live = LiveScreen(command, config) if is_main_process() else None
    if live is not None:
        runner.register_hook(live)
    try:
        with printed_to_log(runner.logger):
            yield
    finally:
        if live is not None:
            live.stop()
