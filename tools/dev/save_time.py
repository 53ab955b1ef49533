"""Measure how long a checkpoint stops a run.

    python tools/dev/save_time.py --megabytes 300 1500

Compares mmengine's way, which writes in place, with SafeCheckpointHook's: copy, then write,
read back and rename in the background. Each time is the median of the rounds.
"""
import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Callable, Optional, Sequence

import torch
from mmengine.runner.checkpoint import save_checkpoint

import mmrla  # noqa: F401  (registers the file backends)
from mmrla.weights.background import WRITER


def seconds(action: Callable[[], None]) -> float:
    """The time that a function takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(megabytes: int, rounds: int, folder: Path) -> None:
    """Print the times for a checkpoint of a size."""
    weights = {f'layer{number}': torch.rand(2**18) for number in range(megabytes)}
    checkpoint = dict(state_dict=weights)
    times = dict(mmengine=[], blocked=[], background=[])
    for _ in range(rounds):
        times['mmengine'].append(seconds(lambda: save_checkpoint(
            checkpoint, str(folder / 'mmengine.pth'), backend_args=dict(backend='local'))))
        times['blocked'].append(seconds(lambda: save_checkpoint(
            checkpoint, str(folder / 'ours.pth'), backend_args=dict(
                backend='atomic_background'))))
        times['background'].append(seconds(WRITER.wait))
    print(f'{megabytes} MB: ' + ', '.join(
        f'{name} {statistics.median(values):.2f} s' for name, values in times.items()))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--megabytes', type=int, nargs='+', default=[300],
                        help='sizes of checkpoints')
    parser.add_argument('--rounds', type=int, default=3, help='saves of each size')
    parser.add_argument('--folder', type=Path, help='a folder on the disk to measure')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for megabytes in args.megabytes:
            measure(megabytes, args.rounds, Path(folder))


if __name__ == '__main__':
    main()
