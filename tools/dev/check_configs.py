"""Train every config for two iterations and evaluate it: does it work at all?

    python tools/dev/check_configs.py path/to/coco [configs/faster_rcnn_*.py ...]

Nothing of a config is changed but the data root, the image scale, the number
of iterations and where the results go; with --without-weights also the
weights it names, for a machine that cannot download them. Each runs in a process of its own; one
line a config says what came out, and the exit code is 1 if one failed.
"""
import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import List, Tuple

from mmengine.config import Config, ConfigDict

import mmrla  # noqa: F401  (silences what the stack prints)

REPO = Path(__file__).resolve().parents[2]


def shorten(cfg: Config, data_root: str, scale: Tuple[int, int], iterations: int) -> None:
    """Point a detector's config at another COCO, at a small scale, for a moment."""
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
    """Run one config; its last line of output, or of its error."""
    with TemporaryDirectory() as folder:
        cfg = Config.fromfile(path)
        shorten(cfg, args.data_root.rstrip('/') + '/', tuple(args.scale), args.iterations)
        if args.without_weights:
            cfg.model.backbone.init_cfg = None
        short = Path(folder) / path.name
        cfg.dump(short)
        result = subprocess.run(
            [sys.executable, REPO / 'tools/train.py', short, '--work-dir', folder], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = result.stdout.strip().splitlines()
    if result.returncode:
        raise RuntimeError(lines[-1] if lines else 'no output')
    losses = [line.split(' loss: ')[1].split()[0] for line in lines if ' loss: ' in line]
    return f'losses {" ".join(losses)}; {evaluation(lines)}'


def evaluation(lines: List[str]) -> str:
    """What the evaluation said; a detector of two iterations may find nothing."""
    for line in reversed(lines):
        if 'coco/bbox_mAP' in line:
            return line.split(']    ')[-1].split('  data_time')[0]
        if 'testing results of the whole dataset is empty' in line:
            return 'evaluated, nothing found yet'
    raise RuntimeError('there was no evaluation')


def main() -> None:
    parser = argparse.ArgumentParser(description='Does every config work at all?')
    parser.add_argument('data_root', help='a folder laid out like COCO 2017')
    parser.add_argument('configs', nargs='*', type=Path, help='default: configs/*_1x*.py')
    parser.add_argument('--scale', nargs=2, type=int, default=(213, 128))
    parser.add_argument('--iterations', type=int, default=2)
    parser.add_argument('--without-weights', action='store_true')
    args = parser.parse_args()
    failed: List[Path] = []
    for path in args.configs or sorted(REPO.glob('configs/*_1x*.py')):
        start = time.time()
        try:
            outcome = check(path, args)
        except Exception as error:  # one config's failure must not hide another's
            outcome = f'FAILED: {error}'
            failed.append(path)
        print(f'{path.stem}: {outcome} ({time.time() - start:.0f} s)', flush=True)
    print(f'{len(failed)} failed' if failed else 'all work')
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
