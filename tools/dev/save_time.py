"""Measure how long a checkpoint stops a run, and how long a run takes to read it.

    python tools/dev/save_time.py --megabytes 300 1500

Compares torch.save and mmengine's way, which write in place, with SafeCheckpointHook's: copy,
then write, read back and rename in the background. Compares torch.load with finding the newest
checkpoint of a work dir, which compares all checksums, and with reading it afterwards. Each time
is the median of the rounds.
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
from mmrla.engine.resume import find_newest
from mmrla.weights import load_checkpoint
from mmrla.weights.background import WRITER


def seconds(action: Callable[[], None]) -> float:
    """The time that a function takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(megabytes: int, rounds: int, folder: Path) -> None:
    """Print the times for a checkpoint of a size."""
    weights = {f'layer{number}': torch.rand(2**18) for number in range(megabytes)}
    checkpoint = dict(state_dict=weights, message_hub={}, meta=dict(epoch=0, iter=1))
    plain, ours = folder / 'plain/iter_1.pth', folder / 'ours/iter_1.pth'
    plain.parent.mkdir(exist_ok=True)
    actions = {
        'torch.save': lambda: torch.save(checkpoint, plain),
        'mmengine saves': lambda: save_checkpoint(
            checkpoint, str(plain), backend_args=dict(backend='local')),
        'ours stops the run': lambda: save_checkpoint(
            checkpoint, str(ours), backend_args=dict(backend='atomic_background')),
        'ours in the background': WRITER.wait,
        'torch.load': lambda: torch.load(plain, weights_only=True),
        'find and verify': lambda: find_newest(str(ours.parent), lambda line: None),
        'read for resuming': lambda: load_checkpoint(str(ours)),
    }
    times = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(seconds(action))
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
