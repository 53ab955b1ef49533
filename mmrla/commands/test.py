"""Evaluate a detector or a classifier: `python tools/test.py CONFIG CHECKPOINT`.

The arguments are those of mmdet's tools/test.py.
"""
import argparse
from copy import deepcopy
from typing import NamedTuple

from mmengine.config import Config, ConfigDict
from mmengine.registry import METRICS

import mmrla  # noqa: F401  (registers the modules and mends the stack)
from mmrla.models.lean.fuse import fuse

from .common import base_parser, build_runner, clear_errors, load_config


class Task(NamedTuple):
    """What mmdet and mmpretrain call differently.

    Attributes:
        drawing: The switch of the visualization hook.
        drawing_dir: Its folder.
        dump: The metric that writes the predictions to a file.
        tta_model: The model that merges the predictions of flipped images.
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


def parse_args() -> argparse.Namespace:
    parser = base_parser('Evaluate a detector or a classifier.')
    parser.add_argument('checkpoint', help='the weights to evaluate')
    parser.add_argument('--out', help='a .pkl file for the predictions')
    parser.add_argument('--show', action='store_true', help='show each prediction in a window')
    parser.add_argument('--show-dir', help='draw the predictions into work_dir/TIMESTAMP/SHOW_DIR')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds a window stays')
    parser.add_argument('--fuse', action='store_true',
                        help='evaluate the form for inference, see mmrla.models.lean.fuse.fuse')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation by flips')
    args = parser.parse_args()
    if args.out and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out {args.out} must end in .pkl or .pickle')
    return args


def draw_predictions(cfg: Config, task: Task, args: argparse.Namespace) -> None:
    """Turn the visualization hook on."""
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


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    cfg.load_from = args.checkpoint
    task = TASKS[cfg.get('default_scope', 'mmdet')]
    if args.show or args.show_dir:
        draw_predictions(cfg, task, args)
    if args.tta:
        augment(cfg, task)
    runner = build_runner(cfg)
    if args.out:
        runner.test_evaluator.metrics.append(
            METRICS.build(dict(type=task.dump, out_file_path=args.out)))
    with clear_errors():
        if args.fuse:
            runner.load_or_resume()
            fuse(runner.model)
        runner.test()


if __name__ == '__main__':
    main()
