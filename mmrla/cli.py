"""What the tools' command lines share."""
import argparse
import contextlib
import os
from pathlib import Path
from typing import Callable, Iterator

from mmengine.config import Config, DictAction
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from .pretrained import load_weights
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


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file that appears whole or not at all.

    Args:
        path: Of the file; its folder is made.
        write: Takes the path to write to.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{os.getpid()}-{path.name}')
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
