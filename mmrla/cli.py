"""What the command lines of tools/train.py and tools/test.py share."""
import argparse
import contextlib
import os
from pathlib import Path
from typing import Iterator

from mmengine.config import Config, DictAction
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .safe_load import CheckpointError

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
    """End with one line, not a traceback, on a checkpoint that cannot be used."""
    try:
        yield
    except CheckpointError as error:
        raise SystemExit(str(error)) from None
