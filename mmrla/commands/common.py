"""What the tools' command lines share."""
import argparse
import contextlib
import os
from pathlib import Path
from typing import Iterator

from mmengine.config import Config, DictAction
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmrla.datasets.errors import DataError
from mmrla.engine.errors import RunError
from mmrla.weights import CheckpointError, load_weights

# The clone, or what a wheel carries of it.
MIM = Path(__file__).parent.parent / '.mim'
REPO = MIM if MIM.exists() else MIM.parent.parent
LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')


def base_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that training and testing share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='the config file')
    parser.add_argument('--work-dir', help='where logs and results go')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
        help='settings that override the config\'s, such as train_cfg.max_epochs=1')
    parser.add_argument(
        '--launcher', choices=LAUNCHERS, default='none',
        help='what started the processes; see tools/dist_train.sh')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0,
                        help=argparse.SUPPRESS)
    return parser


def load_config(args: argparse.Namespace) -> Config:
    """The config, with the shared arguments written into it."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not Path(args.config).is_file():
        raise SystemExit(f'config {args.config} does not exist')
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    return cfg


def build_runner(cfg: Config) -> Runner:
    """The config's runner, mmengine's own unless it names another."""
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """End with one line instead of a traceback on errors that a user can fix."""
    try:
        yield
    except DataError as error:  # a worker of a loader puts its traceback before
        raise SystemExit(str(error).strip().splitlines()[-1].removeprefix(
            'mmrla.datasets.errors.DataError: ')) from None
    except (CheckpointError, RunError) as error:
        raise SystemExit(str(error)) from None


def silence() -> None:
    """Let mmengine say errors only, in a tool whose output is its own."""
    MMLogger.get_instance('mmrla', logger_name='mmrla', log_level='ERROR')


def read_backbone(config: str, checkpoint: str) -> nn.Module:
    """A config's backbone with a checkpoint's weights, in eval mode.

    Weights that the checkpoint lacks are an error: a tool that shows what a
    network learnt must not show initial values.
    """
    if not Path(config).is_file():
        raise SystemExit(f'config {config} does not exist')
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    with clear_errors():
        report = load_weights(backbone, str(checkpoint))
    if report.initial:
        raise SystemExit(f'checkpoint {checkpoint} is not of {config}: {report}')
    return backbone.eval()
