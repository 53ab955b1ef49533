"""Train every config for two iterations and evaluate it.

    python tools/dev/check_configs.py path/to/coco [configs/faster_rcnn_*.py ...]

Only the data root, the image scale, the number of iterations and the work dir of a
config are changed. --without-weights also removes the initial weights, for a machine
without a network. --processes runs a config through tools/dist_train.sh. One line is
printed per config, and the exit code is 1 if a config failed.
"""
import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import List, Optional, Sequence, Tuple

from mmengine.config import Config, ConfigDict

import mmrla  # noqa: F401  (registers the modules)
from mmrla.commands.paths import REPO


def shorten(cfg: Config, data_root: str, scale: Tuple[int, int], iterations: int) -> None:
    """Change a config to a few iterations on small images of another data root."""
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = data_root
        for transform in loader.dataset.pipeline:
            if transform.type == 'Resize':
                transform.scale = scale
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.ann_file = evaluator.ann_file.replace(cfg.data_root, data_root)
    cfg.train_cfg = ConfigDict(
        type='IterBasedTrainLoop', max_iters=iterations, val_interval=iterations)
    cfg.default_hooks.logger.interval = 1


def check(path: Path, args: argparse.Namespace) -> str:
    """Run one config and return its losses and evaluation."""
    with TemporaryDirectory() as folder:
        cfg = Config.fromfile(path)
        shorten(cfg, args.data_root.rstrip('/') + '/', tuple(args.scale), args.iterations)
        if args.without_weights:
            cfg.model.backbone.init_cfg = None
        short = Path(folder) / path.name
        cfg.dump(short)
        command = [sys.executable, REPO / 'tools/train.py', short]
        if args.processes > 1:
            command = [REPO / 'tools/dist_train.sh', short, str(args.processes)]
        result = subprocess.run([*command, '--work-dir', folder], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = result.stdout.strip().splitlines()
    if result.returncode:
        raise RuntimeError(lines[-1] if lines else 'no output')
    losses = [line.split(' loss: ')[1].split()[0] for line in lines if ' loss: ' in line]
    return f'{initial_weights(lines)}; losses {" ".join(losses)}; {evaluation(lines)}'


def initial_weights(lines: List[str]) -> str:
    """Return what the report says of the entries that start from initial values."""
    found = [line.split('INFO - ')[-1] for line in lines if 'left at their initial values' in line]
    return found[0] if found else 'no initial weights'


def evaluation(lines: List[str]) -> str:
    """Return the result of the evaluation; after two iterations it may be empty."""
    for line in reversed(lines):
        if 'coco/bbox_mAP' in line:
            return line.split(']    ')[-1].split('  data_time')[0]
        if 'testing results of the whole dataset is empty' in line:
            return 'evaluated without any detection'
    raise RuntimeError('the run ended without an evaluation')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Train every config for two iterations.')
    parser.add_argument('data_root', help='folder with the layout of COCO 2017')
    parser.add_argument('configs', nargs='*', type=Path, help='default: configs/*_1x*.py')
    parser.add_argument('--scale', nargs=2, type=int, default=(213, 128), help='image scale')
    parser.add_argument('--iterations', type=int, default=2, help='training iterations')
    parser.add_argument('--processes', type=int, default=1, help='processes of each run')
    parser.add_argument('--without-weights', action='store_true',
                        help='start from random weights')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    failed: List[Path] = []
    for path in args.configs or sorted(REPO.glob('configs/*_1x*.py')):
        start = time.time()
        try:
            outcome = check(path, args)
        except Exception as error:  # the remaining configs are still checked
            outcome = f'FAILED: {error}'
            failed.append(path)
        print(f'{path.stem}: {outcome} ({time.time() - start:.0f} s)', flush=True)
    print(f'{len(failed)} configs failed' if failed else 'all configs work')
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
