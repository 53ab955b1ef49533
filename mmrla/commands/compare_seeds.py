r"""Train several configs with several seeds and compare a metric.

    python tools/compare_seeds.py configs/pretrain/r20_cifar_folders.py \
        configs/pretrain/rla_r20_cifar_folders.py --seeds 0 1 2 --work-dir work_dirs/r20

For each config and seed the command runs tools/train.py, then tools/test.py with the
checkpoint that was best in validation, or with the last one if the config keeps no
best checkpoint. All configs use the same seeds. A finished run is not repeated; an
interrupted run is resumed.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mmrla.weights.writing import write_file

from .paths import REPO


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Train configs with several seeds and compare a metric.')
    parser.add_argument('configs', nargs='+', type=Path, help='paths of the configs')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2], help='seeds to train')
    parser.add_argument('--work-dir', type=Path, required=True, help='folder for all runs')
    parser.add_argument('--metric', default='accuracy/top1', help='metric to compare')
    parser.add_argument('--cfg-options', nargs='+', default=[], metavar='KEY=VALUE',
                        help='settings that override every config')
    return parser


def run_tool(script: str, *arguments) -> None:
    """Run a script of tools/; its output goes to the terminal."""
    subprocess.run([sys.executable, REPO / 'tools' / script, *map(str, arguments)], check=True)


def chosen_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run, or the last one if there is no best."""
    best = sorted(run.glob('best_*.pth'), key=lambda path: path.stat().st_mtime)
    return best[-1] if best else Path((run / 'last_checkpoint').read_text())


def measure(config: Path, seed: int, args: argparse.Namespace) -> float:
    """Train and test once, and return the metric of the test."""
    run = args.work_dir / config.stem / f'seed_{seed}'
    result = run / 'result.json'
    if not result.exists():
        options = ['--cfg-options', *args.cfg_options, f'randomness.seed={seed}']
        run_tool('train.py', config, '--work-dir', run, '--resume', *options)
        run_tool('test.py', config, chosen_checkpoint(run), '--work-dir', run / 'test', *options)
        log = sorted((run / 'test').glob('*/*.json'))[-1]
        write_file(result, lambda file: file.write(log.read_bytes()))
    return json.loads(result.read_text())[args.metric]


def table(found: Dict[str, List[float]]) -> str:
    """Format the mean, the standard deviation and the values of each config."""
    lines = []
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else float('nan')
        each = ', '.join(f'{value:.4g}' for value in values)
        lines.append(f'{name:<32} {statistics.mean(values):7.4g} +- {spread:.2g}   ({each})')
    return '\n'.join(lines)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    found: Dict[str, List[float]] = {}
    # The seeds are the outer loop, so that an interrupted comparison has equal seeds.
    for seed in args.seeds:
        for config in args.configs:
            found.setdefault(config.stem, []).append(measure(config, seed, args))
    print(f'\n{args.metric} on the test images, seeds {args.seeds}')
    print(table(found))


if __name__ == '__main__':
    main()
