"""Train a detector or a classifier: ``python tools/train.py CONFIG``.

The arguments are those of mmdet's tools/train.py, plus --pretrained.
"""
import argparse
import os
import sys
from importlib.util import find_spec
from typing import Dict, Optional, Sequence

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device

import mmrla  # noqa: F401  (registers the modules)
from mmrla.engine.config_checks import arguments_of
from mmrla.evaluation.annotations import check_annotation_files
from mmrla_cli import run_distributed

from .arguments import runner_parser
from .configs import read_runner_config
from .errors import clear_errors
from .live import shown
from .runner import build_runner, check_config, prepare_training

# By flag, mmengine's backend and the package that it needs.
BACKENDS = dict(tensorboard=('TensorboardVisBackend', 'tensorboard'),
                wandb=('WandbVisBackend', 'wandb'), mlflow=('MLflowVisBackend', 'mlflow'))
# Set by torchrun and by Slurm.
RESTART_COUNTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT')
# Set by the launcher of several processes: a file that exists once they have started training.
# torchrun does not count a restart because of a machine that joins.
STARTED_FILE = 'MMRLA_STARTED_FILE'


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = runner_parser('Train a detector or a classifier.')
    parser.add_argument(
        '--pretrained', metavar='CHECKPOINT',
        help='initial weights of the backbone, from an RLA network or a plain one: a path, a URL '
        'or torchvision://resnet50; short for model.backbone.init_cfg in the config')
    parser.add_argument(
        '--from-scratch', action='store_true',
        help='train all layers from random values: no pretrained weights, nothing frozen, norms '
        'that learn')
    parser.add_argument('--amp', action='store_true', help='train with mixed precision')
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help='scale the learning rate with the total batch size; the configs of mmrla enable this')
    parser.add_argument(
        '--resume', nargs='?', const='auto', metavar='CHECKPOINT',
        help='resume from a checkpoint; without a path, from the newest readable checkpoint in '
        'the work dir')
    for name, (_, package) in BACKENDS.items():
        parser.add_argument(f'--{name}', action='store_true',
                            help=f'log to {package} as well, through mmengine')
    return parser


def add_backends(cfg: Config, names: Sequence[str]) -> None:
    """Log to further backends.

    Args:
        cfg: The config of a run.
        names: Keys of ``BACKENDS``.
    """
    for name in names:
        kind, package = BACKENDS[name]
        if find_spec(package) is None:
            raise SystemExit(f'--{name} needs a package: pip install {package}')
        visualizer = cfg.setdefault('visualizer', dict(type='Visualizer'))
        backends = visualizer.get('vis_backends') or [dict(type='LocalVisBackend')]
        if all(backend.get('type') != kind for backend in backends):
            settings = mlflow_settings(cfg['work_dir']) if name == 'mlflow' else {}
            visualizer['vis_backends'] = [*backends, dict(type=kind, **settings)]


def mlflow_settings(work_dir: str) -> Dict[str, str]:
    """Where MLflow writes: to the server that its own variable names, else to the work dir.

    mmengine's default is a folder, which MLflow 3.17 refuses; a database is accepted.
    """
    folder = os.path.abspath(work_dir)
    return dict(
        tracking_uri=os.environ.get('MLFLOW_TRACKING_URI') or f'sqlite:///{folder}/mlflow.db',
        artifact_location=f'file://{folder}/mlflow')


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write the arguments of training into the config."""
    add_backends(cfg, [name for name in BACKENDS if getattr(args, name)])
    if args.pretrained:
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=args.pretrained)
    if args.from_scratch:
        start_from_scratch(cfg.model.backbone, cfg.get('default_scope') or 'mmengine')
    if args.amp:
        enable_mixed_precision(cfg)
    if args.auto_scale_lr:
        enable_lr_scaling(cfg, args.config)
    if args.resume not in (None, 'auto'):
        cfg.resume = 'restart' if is_restarted() else True
        cfg.load_from = args.resume
    elif args.resume or is_restarted():
        cfg.resume = 'auto'


def start_from_scratch(backbone: ConfigDict, scope: str) -> None:
    """Train every layer of a backbone from random values.

    Args:
        backbone: Its config.
        scope: The scope of names without one.
    """
    if 'backbone' in backbone:  # WithRLA: the settings are those of the network inside
        backbone.pop('init_cfg', None)
        unfreeze(backbone.backbone, scope)
    else:
        backbone.update(init_cfg=None, frozen_stages=-1, norm_eval=False)
        backbone.setdefault('norm_cfg', dict(type='BN'))
    if backbone.get('norm_cfg'):
        backbone.norm_cfg.update(requires_grad=True)


def unfreeze(network: ConfigDict, scope: str) -> None:
    """Remove the weights of a network of any class, and turn off all freezing.

    What the config does not set is set too: a class may freeze by default, as mmdet's
    ResNet does with ``norm_eval=True``.
    """
    for key in ('init_cfg', 'pretrained'):
        network.pop(key, None)
    accepted = arguments_of(network.type, scope) or network
    network.update({key: value for key, value in dict(frozen_stages=-1, norm_eval=False).items()
                    if key in accepted})
    if network.get('norm_cfg'):
        network.norm_cfg.update(requires_grad=True)


def enable_mixed_precision(cfg: Config) -> None:
    """Train with mixed precision, which mmengine supports on accelerators only."""
    if get_device() == 'cpu':
        raise SystemExit('--amp needs a GPU; train in float32 without --amp')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


def enable_lr_scaling(cfg: Config, name: str) -> None:
    """Scale the learning rate with the total batch size."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise SystemExit(f'--auto-scale-lr needs auto_scale_lr.base_batch_size in {name}')
    cfg.auto_scale_lr.enable = True


def is_restarted() -> bool:
    """Return whether torchrun (MAX_RESTARTS) or Slurm (REQUEUE) started this run again."""
    return os.path.exists(os.environ.get(STARTED_FILE, '')) or any(
        int(os.environ.get(name, 0)) > 0 for name in RESTART_COUNTS)


def note_start() -> None:
    """Let a later start by the same launcher know that it is a restart.

    All processes must have called :func:`is_restarted` before one calls this function.
    """
    path = os.environ.get(STARTED_FILE)
    if path:
        open(path, 'a').close()


def train(cfg: Config, args: argparse.Namespace) -> None:
    """Check the config, build the runner and train."""
    source = f'config {args.config}'
    if not args.no_checks:
        check_config(cfg, ('train_dataloader', 'val_dataloader'))
    check_annotation_files(cfg, 'val_evaluator')
    runner = build_runner(cfg, source)
    with shown(runner, 'train', args.config):
        prepare_training(runner, source)
        note_start()
        runner.train()


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.pretrained and args.from_scratch:
        parser.error('--pretrained and --from-scratch exclude each other')
    if args.gpus:
        run_distributed('train', args.gpus, sys.argv[1:] if argv is None else argv)
    with clear_errors():
        cfg = read_runner_config(args)
        apply_arguments(cfg, args)
        train(cfg, args)


if __name__ == '__main__':
    main()
