"""Reading configs that are named on the command line."""
import argparse
import os
from pathlib import Path

from mmengine.config import Config
from mmengine.hub import get_config

from mmrla.engine.config_checks import check_options, check_top_level, did_you_mean

from .errors import TRACEBACK, value_errors


def read_config(name: str) -> Config:
    """Read a config.

    Args:
        name: Path of a file, or package and name as in
            ``mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py``.
    """
    if '::' in name:
        return get_config(name)
    if not Path(name).is_file():
        raise SystemExit(f'config {name} does not exist{_similar(name)}')
    return Config.fromfile(name)


def _similar(name: str) -> str:
    """Name a config of the same folder, or of mmrla, that is spelt nearly so."""
    path = Path(name)
    near = [item.name for item in path.parent.glob('*.py')] if path.parent.is_dir() else []
    return did_you_mean(path.name, near)


def read_runner_config(args: argparse.Namespace) -> Config:
    """Read the config of a run and write the shared arguments into it.

    Args:
        args: Arguments of :func:`mmrla.commands.arguments.runner_parser`.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if args.traceback:
        os.environ[TRACEBACK] = '1'
    with value_errors(f'config {args.config}'):
        cfg = read_config(args.config)
        if not args.no_checks:
            check_top_level(cfg)
            check_options(cfg, args.cfg_options)
        cfg.merge_from_dict(args.cfg_options)
    cfg.launcher = args.launcher
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    return cfg
