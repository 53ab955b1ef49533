"""Runs that are cheap to start and to kill: a small detector in forked processes."""
import copy
import gc
import mmap
import os
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import METRICS
from mmengine.runner import runner as mmengine_runner_module

import mmrla  # noqa: F401  (registers the modules)
from mmrla.commands.paths import REPO
from mmrla.commands.runner import build_runner

CONFIG = REPO / 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
# Two stages and small images: a step takes 0.04 s.
SMALL_MODEL = {
    'model.backbone': dict(num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(0, 1),
                           base_channels=8),
    'model.neck': dict(in_channels=[8, 16], out_channels=16, num_outs=2),
    'model.rpn_head': dict(in_channels=16, feat_channels=16,
                           anchor_generator=dict(strides=[4, 8])),
    'model.roi_head.bbox_roi_extractor': dict(out_channels=16, featmap_strides=[4, 8]),
    'model.roi_head.bbox_head': dict(in_channels=16, fc_out_channels=32),
    'model.train_cfg.rpn_proposal': dict(nms_pre=50, max_per_img=20),
    'model.train_cfg.rcnn.sampler': dict(num=16),
    'model.test_cfg.rpn': dict(nms_pre=20, max_per_img=10),
}


def prepare() -> None:
    """Do once what every child would do, and replace two slow functions.

    mmengine formats the whole config for every checkpoint, and runs compilers to
    get their versions at every start.
    """
    torch.set_num_threads(1)  # a child with more threads may hang
    register_all_modules()
    Config.pretty_text = property(lambda cfg: repr(cfg._cfg_dict.to_dict()))
    mmengine_runner_module.collect_env = dict
    gc.collect()
    gc.freeze()  # else the first collection of a child copies all the memory of its parent


@METRICS.register_module()
class WeightsMetric(BaseMetric):
    """A number that any change of the weights changes, and that goes up and down.

    The mAP of a detector of a few steps is 0, and the first checkpoint would stay the best.
    """

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the scores of a batch."""
        self.results += [float(sample['pred_instances']['scores'].double().sum())
                         for sample in data_samples]

    def compute_metrics(self, results: List[float]) -> Dict[str, float]:
        """Return the digits of the sum of all scores from the fourth on."""
        return dict(digits=sum(results) * 1000 % 1)


class Progress:
    """The progress of a run, in memory that its processes share and that survives them.

    Args:
        file: A file for processes that are not forked from this one.

    Attributes:
        step: The number of finished steps.
        resumed_at: The step that the run started from; -1 before.
        saving: The step of a checkpoint that ``last_checkpoint`` does not name yet; 0 if
            there is none.
        writing: Whether a checkpoint or the pointer to it is open.
        struck: Whether the moment of the kill has come; see ``moments.py``.
    """

    FIELDS = ('step', 'resumed_at', 'saving', 'writing', 'struck')

    def __init__(self, file: Optional[Path] = None) -> None:
        size = 8 * len(self.FIELDS)
        if file is None:
            self._memory = mmap.mmap(-1, size)
        else:
            if not file.exists():
                file.write_bytes(bytes(size))
            with file.open('r+b') as opened:
                self._memory = mmap.mmap(opened.fileno(), size)

    def clear(self) -> None:
        """Reset all fields."""
        for name in self.FIELDS:
            setattr(self, name, -1 if name == 'resumed_at' else 0)

    @property
    def reached(self) -> int:
        """int: The last step; -1 if the run did not start to train."""
        return max(self.step, self.resumed_at)

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
        """Report the step that the run starts from."""
        self.progress.resumed_at = runner.iter

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Report the number of finished steps."""
        self.progress.step = runner.iter + 1


class ActHook(Hook):
    """Call a function after each step, and after its checkpoint.

    Args:
        act: Function of the number of finished steps.
    """

    priority = 'LOWEST'

    def __init__(self, act: Callable[[int], None]) -> None:
        self.act = act

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Call the function."""
        self.act(runner.iter + 1)


def small_config(data: Path, work_dir: Path, validate: bool = False, **options: Any) -> Config:
    """Return the config of a small detector.

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
        **copy.deepcopy(SMALL_MODEL),
        'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10)],
        'log_level': 'WARNING', 'default_hooks.logger.interval': 1,
        'test_dataloader': None, 'test_cfg': None, 'test_evaluator': None,
        'work_dir': str(work_dir),
        # merging takes _delete_ out of the values
        **{name.replace('__', '.'): copy.deepcopy(value) for name, value in options.items()}})
    if not validate:
        cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None)
        cfg.train_cfg.pop('val_interval', None)
    cfg.default_hooks.pop('visualization', None)
    return cfg


def train(cfg: Config, progress: Progress, act: Callable[[int], None] = lambda step: None,
          hooks: Sequence[Hook] = ()) -> None:
    """Train in this process."""
    runner = build_runner(cfg)
    for hook in (ReportHook(progress), ActHook(act), *hooks):
        runner.register_hook(hook)
    runner.train()


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
        sys.stdout, sys.stderr = (open(number, 'w', buffering=1, closefd=False)
                                  for number in (1, 2))
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


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def join_group(cfg: Config, rank: int, processes: int, port: int) -> None:
    """Let this process be one of several of a run, as torchrun would."""
    if processes > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_RANK=str(rank),
                          MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        cfg.launcher = 'pytorch'
