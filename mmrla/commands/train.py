"""Train a detector or a classifier: `python tools/train.py CONFIG`.

The arguments are those of mmdet's tools/train.py, and --pretrained.
"""
import argparse
import os

from mmengine.config import Config
from mmengine.device import get_device

import mmrla  # noqa: F401  (registers the modules and mends the stack)

from .common import base_parser, build_runner, clear_errors, load_config


def parse_args() -> argparse.Namespace:
    parser = base_parser('Train a detector or a classifier.')
    parser.add_argument(
        '--pretrained', metavar='CHECKPOINT',
        help='weights that the backbone starts from, an RLA network\'s or a plain one\'s: a path, '
        'a URL or torchvision://resnet50; short for model.backbone.init_cfg in the config')
    parser.add_argument('--amp', action='store_true', help='train with mixed precision')
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help='scale the learning rate by the batch; mmrla\'s own configs always do')
    parser.add_argument(
        '--resume', nargs='?', const='auto', metavar='CHECKPOINT',
        help='go on from a checkpoint; without a path, from the newest one in the work dir that '
        'can be read')
    return parser.parse_args()


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write the arguments of training into the config."""
    if args.pretrained:
        cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=args.pretrained)
    if args.amp:
        if get_device() == 'cpu':  # where half precision is slower, and mmengine refuses it
            raise SystemExit('--amp needs a GPU; leave it out to train in float32')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise SystemExit(
                f'--auto-scale-lr needs auto_scale_lr.base_batch_size in {args.config}')
        cfg.auto_scale_lr.enable = True
    if args.resume not in (None, 'auto'):
        cfg.resume = 'restart' if is_restarted() else True
        cfg.load_from = args.resume
    elif args.resume or is_restarted():
        cfg.resume = 'auto'


def is_restarted() -> bool:
    """Whether torchrun started this anew after a failure (MAX_RESTARTS)."""
    return int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)) > 0


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    apply_arguments(cfg, args)
    with clear_errors():
        build_runner(cfg).train()


if __name__ == '__main__':
    main()
