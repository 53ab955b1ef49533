"""The kinds of runs that are interrupted. A new kind is one more entry of ``SCENARIOS``."""
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from mmengine.config import Config

from .obstacles import OBSTACLES, Obstacle
from .small_runs import small_config

# An undisturbed run. All batches of a step together have 4 images.
IMAGES, STEPS = 16, 24
STEPS_PER_EPOCH = IMAGES // 4


@dataclass(frozen=True)
class Scenario:
    """How a run trains, and what is done to it.

    Attributes:
        processes: The number of processes.
        by_epoch: Whether it saves at the ends of epochs, else every 3 steps.
        validate: Whether it validates, and keeps the best checkpoint.
        options: Further settings of its config, with ``__`` instead of dots.
        events: The moments of its kills; see ``moments.EVENTS``.
        victims: What is killed; see ``moments.Moment``.
        launcher: Whether torchrun starts it.
        obstacle: What happens to it instead of kills.
        is_baseline: Whether it is there for comparison, and may lose work.
    """
    processes: int = 1
    by_epoch: bool = False
    validate: bool = False
    options: Dict[str, Any] = field(default_factory=dict)
    events: Sequence[str] = ('start', 'step', 'write', 'pointer', 'removal')
    victims: Sequence[str] = ('rank',)
    launcher: bool = False
    obstacle: Optional[Obstacle] = None
    is_baseline: bool = False

    @property
    def kills_per_run(self) -> int:
        """int: After so many kills, a run is left to finish."""
        return 3 if self.launcher or self.obstacle else 12

    @property
    def interval(self) -> int:
        """int: The steps between two checkpoints."""
        return STEPS_PER_EPOCH if self.by_epoch else 3


WORKERS = dict(train_dataloader__num_workers=2, train_dataloader__persistent_workers=True)
AVERAGED = dict(custom_hooks=[dict(type='EMAHook')])
BY_ITERATION = dict(
    train_cfg=dict(_delete_=True, type='IterBasedTrainLoop', max_iters=STEPS, val_interval=3),
    train_dataloader__sampler=dict(_delete_=True, type='InfiniteSampler'),
    param_scheduler=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10)],
    default_hooks__logger__log_metric_by_epoch=False)
VALIDATING = ('step', 'write', 'pointer', 'removal', 'validation', 'validation')
MMENGINE = dict(runner_type='Runner', default_hooks__checkpoint__type='CheckpointHook')

SCENARIOS = {
    'epochs': Scenario(by_epoch=True),
    'within epochs': Scenario(),
    'epochs, persistent workers': Scenario(
        by_epoch=True, options=WORKERS, victims=('rank', 'worker')),
    'epochs, validation, best, averaged weights': Scenario(
        by_epoch=True, validate=True, options=AVERAGED, events=VALIDATING),
    'within epochs, validation, best, averaged weights': Scenario(
        validate=True, options=AVERAGED, events=VALIDATING),
    'iterations': Scenario(options=BY_ITERATION),
    'iterations, persistent workers': Scenario(
        options={**BY_ITERATION, **WORKERS}, victims=('rank', 'worker')),
    'iterations, validation, best, averaged weights': Scenario(
        validate=True, options={**BY_ITERATION, **AVERAGED}, events=VALIDATING),
    '2 processes, within epochs': Scenario(2, victims=('rank', 'rank', 'all')),
    '2 processes, iterations, persistent workers, validation, best, averaged weights': Scenario(
        2, validate=True, options={**BY_ITERATION, **AVERAGED, **WORKERS}, events=VALIDATING,
        victims=('rank', 'worker', 'all')),
    '4 processes, within epochs': Scenario(4, victims=('rank', 'rank', 'all')),
    '4 processes, epochs, validation, best, averaged weights': Scenario(
        4, by_epoch=True, validate=True, options=AVERAGED, events=VALIDATING,
        victims=('rank', 'rank', 'all')),
    '2 processes, torchrun': Scenario(
        2, launcher=True, events=('step', 'write', 'removal'), victims=('launcher', 'rank')),
    **{name: Scenario(**obstacle.run, events=('step',), obstacle=obstacle)
       for name, obstacle in OBSTACLES.items()},
    "mmengine's CheckpointHook, within epochs": Scenario(options=MMENGINE, is_baseline=True),
}


def config_of(scenario: Scenario, data: Path, work_dir: Path) -> Config:
    """The config of a run of a scenario."""
    images = 4 // scenario.processes
    options = dict(
        resume=True, train_dataloader__batch_size=images, val_dataloader__batch_size=1,
        train_cfg__max_epochs=STEPS // STEPS_PER_EPOCH, train_cfg__val_interval=1,
        val_evaluator=dict(_delete_=True, type='WeightsMetric'),
        param_scheduler=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10),
                         dict(type='ExponentialLR', gamma=0.9, by_epoch=True)],
        default_hooks__checkpoint=dict(
            _delete_=True, type='SafeCheckpointHook', by_epoch=scenario.by_epoch,
            interval=1 if scenario.by_epoch else scenario.interval, max_keep_ckpts=1,
            save_best='digits' if scenario.validate else None, rule='greater'))
    if 'train_cfg' in scenario.options:
        options = {key: value for key, value in options.items()
                   if not key.startswith('train_cfg__')}
    return small_config(data, work_dir, validate=scenario.validate,
                        **{**options, **scenario.options})
