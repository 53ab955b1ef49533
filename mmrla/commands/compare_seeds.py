r"""Train several configs with several seeds and compare what they reach.

    python tools/compare_seeds.py configs/pretrain/r20_cifar_folders.py \
        configs/pretrain/rla_r20_cifar_folders.py --seeds 0 1 2 --work-dir work_dirs/r20

Every run is tools/train.py, then tools/test.py of the checkpoint that was best
on the validation images (the last where the config keeps no best one). The same
recipe, budget and seeds for each. A run that is done is not done again; one
that was interrupted is resumed.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from .common import REPO


def call(script: str, *arguments) -> None:
    """Run a tool; its output goes to the screen."""
    subprocess.run([sys.executable, REPO / 'tools' / script, *map(str, arguments)], check=True)


def chosen_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run, else its last."""
    best = sorted(run.glob('best_*.pth'), key=lambda path: path.stat().st_mtime)
    return best[-1] if best else Path((run / 'last_checkpoint').read_text())


def measure(config: Path, seed: int, args: argparse.Namespace) -> float:
    """Train and test once; the metric that the test reports."""
    run = args.work_dir / config.stem / f'seed_{seed}'
    result = run / 'result.json'
    if not result.exists():
        options = ['--cfg-options', *args.cfg_options, f'randomness.seed={seed}']
        call('train.py', config, '--work-dir', run, '--resume', *options)
        call('test.py', config, chosen_checkpoint(run), '--work-dir', run / 'test', *options)
        log = sorted((run / 'test').glob('*/*.json'))[-1]
        result.write_text(log.read_text())
    return json.loads(result.read_text())[args.metric]


def main() -> None:
    parser = argparse.ArgumentParser(description='Compare configs over several seeds.')
    parser.add_argument('configs', nargs='+', type=Path)
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--work-dir', type=Path, required=True)
    parser.add_argument('--metric', default='accuracy/top1')
    parser.add_argument('--cfg-options', nargs='+', default=[], metavar='KEY=VALUE')
    args = parser.parse_args()
    found: Dict[str, List[float]] = {}
    for seed in args.seeds:  # seed by seed, so that an early end compares like with like
        for config in args.configs:
            found.setdefault(config.stem, []).append(measure(config, seed, args))
    print(f'\n{args.metric} on the test images, seeds {args.seeds}')
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else float('nan')
        each = ', '.join(f'{value:.4g}' for value in values)
        print(f'{name:<32} {statistics.mean(values):7.4g} +- {spread:.2g}   ({each})')


if __name__ == '__main__':
    main()
