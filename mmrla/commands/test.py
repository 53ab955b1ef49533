"""Evaluate a detector or a classifier: ``python tools/test.py CONFIG CHECKPOINT``.

The arguments are those of mmdet's tools/test.py, plus --fuse.
"""
import argparse
import sys
from copy import deepcopy
from typing import NamedTuple, Optional, Sequence

from mmengine.config import Config, ConfigDict
from mmengine.registry import METRICS
from mmengine.runner import Runner

import mmrla  # noqa: F401  (registers the modules)
from mmrla.evaluation.annotations import check_annotation_files
from mmrla.inference.checkpoints import find_checkpoint
from mmrla.models.lean.fuse import fuse
from mmrla_cli import run_distributed

from .arguments import runner_parser
from .configs import read_runner_config
from .errors import clear_errors
from .live import shown
from .runner import build_runner, check_config, prepare_testing


class Task(NamedTuple):
    """Names that differ between mmdet and mmpretrain.

    Attributes:
        drawing: Argument of the visualization hook that enables it.
        drawing_dir: Argument of the visualization hook for its folder.
        dump: Metric that writes the predictions to a file.
        tta_model: Model that merges the predictions for flipped images.
    """
    drawing: str
    drawing_dir: str
    dump: str
    tta_model: dict


TASKS = dict(
    mmdet=Task(
        'draw', 'test_out_dir', 'mmdet.DumpDetResults',
        dict(type='DetTTAModel',
             tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100))),
    mmpretrain=Task(
        'enable', 'out_dir', 'DumpResults', dict(type='mmpretrain.AverageClsScoreTTA')))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = runner_parser('Evaluate a detector or a classifier.')
    parser.add_argument('checkpoint', help='weights to evaluate, or the work dir of a training')
    parser.add_argument('--out', help='write the predictions to this .pkl file')
    parser.add_argument('--show', action='store_true', help='show each prediction in a window')
    parser.add_argument('--show-dir',
                        help='draw the predictions into work_dir/TIMESTAMP/SHOW_DIR')
    parser.add_argument('--wait-time', type=float, default=2,
                        help='seconds between two windows of --show')
    parser.add_argument(
        '--fuse', action='store_true',
        help='fold norms into convolutions before the evaluation (mmrla.models.lean.fuse)')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation with flips')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.out and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out {args.out} must end in .pkl or .pickle')
    return args


def draw_predictions(cfg: Config, task: Task, args: argparse.Namespace) -> None:
    """Enable the visualization hook."""
    hook = cfg.default_hooks.get('visualization')
    if hook is None:
        raise SystemExit(f'--show and --show-dir need default_hooks.visualization in {args.config}')
    hook.update({task.drawing: True, 'show': args.show, 'wait_time': args.wait_time})
    if args.show_dir:
        hook[task.drawing_dir] = args.show_dir


def augment(cfg: Config, task: Task) -> None:
    """Wrap the model and its pipeline for test-time augmentation."""
    pipeline = deepcopy(cfg.test_dataloader.dataset.pipeline)
    pack = pipeline.pop()
    if 'meta_keys' in pack:
        pack.meta_keys = (*pack.meta_keys, 'flip', 'flip_direction')
    flips = [dict(type='RandomFlip', prob=prob) for prob in (1.0, 0.0)]
    pipeline.append(dict(type='TestTimeAug', transforms=[flips, [pack]]))
    cfg.test_dataloader.dataset.pipeline = cfg.get('tta_pipeline', pipeline)
    cfg.model = ConfigDict(**cfg.get('tta_model', task.tta_model), module=cfg.model)


def evaluate(cfg: Config, task: Task, args: argparse.Namespace) -> None:
    """Build the runner and test."""
    check_annotation_files(cfg, 'test_evaluator')
    source = f'config {args.config}'
    runner = build_runner(cfg, source)
    with shown(runner, 'test', args.config):
        run_test(runner, task, args, source)


def run_test(runner: Runner, task: Task, args: argparse.Namespace, source: str) -> None:
    """Test with the options of the command line."""
    prepare_testing(runner, source)
    if args.out:
        runner.test_evaluator.metrics.append(
            METRICS.build(dict(type=task.dump, out_file_path=args.out)))
    if args.fuse:
        runner.load_or_resume()
        fuse(runner.model)
    runner.test()


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    if args.gpus:
        run_distributed('test', args.gpus, sys.argv[1:] if argv is None else argv)
    with clear_errors():
        cfg = read_runner_config(args)
        cfg.load_from = find_checkpoint(args.checkpoint)
        task = TASKS[cfg.get('default_scope', 'mmdet')]
        if args.show or args.show_dir:
            draw_predictions(cfg, task, args)
        if not args.no_checks:
            check_config(cfg, ('test_dataloader',))
        if args.tta:
            augment(cfg, task)
        evaluate(cfg, task, args)


if __name__ == '__main__':
    main()
