"""Interrupt training runs of many kinds, resume them, and compare them with undisturbed runs.

    python tools/dev/chaos.py --kills 100 --seed 1 --json result.json
    python tools/dev/chaos.py --scenarios "4 processes, within epochs" --seed 3 --run 2
    python tools/dev/chaos.py --summarise docs/evidence/chaos/*.json

Every scenario trains a small detector on the embedded shapes: once undisturbed, and then with
kills (SIGKILL) at moments from the seed until there are enough of them. Each run must resume,
lose no more than an interval, leave no unreadable file, and end equal to the bit: weights,
optimizer, averaged weights, schedules, best checkpoint and logged losses. Other scenarios stop a
run by a full disk, a limit or a process that stands still; some need root, to mount file systems.
"""
import argparse
import json
import random
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from mmrla.datasets import make_shapes

sys.path.insert(0, str(Path(__file__).parent))  # not there if a test loads this file
from interruptions.equality import compare, pointer_state  # noqa: E402, F401
from interruptions.moments import Patience  # noqa: E402, F401
from interruptions.results import is_good, read_results, result_of, summarise  # noqa: E402
from interruptions.scenarios import IMAGES, SCENARIOS  # noqa: E402
from interruptions.small_runs import (  # noqa: E402, F401
    Progress,
    fork,
    free_port,
    join_group,
    prepare,
    small_config,
    train,
)
from interruptions.trials import Run, Trial  # noqa: E402


def try_scenario(name: str, kills: int, seed: int, folder: Path, data: Path,
                 only: Optional[int] = None) -> Dict[str, Any]:
    """Interrupt runs of a scenario.

    Args:
        name: The scenario.
        kills: The number of interruptions in all.
        seed: The seed of their moments.
        folder: An empty folder.
        data: The folder of ``make_shapes``.
        only: Make this run only.

    Returns:
        dict: What happened; see :func:`interruptions.results.result_of`.
    """
    start = time.monotonic()
    trial = Trial(name, folder, data)
    with trial.prepared():
        straight = trial.make_straight()
        numbers = [only] if only is not None else range(10**9)
        runs: List[Run] = []
        for number in numbers:
            left = kills - sum(len(run.cycles) for run in runs)
            if left <= 0:
                break
            rng = random.Random(f'{seed} {name} {number}')
            runs.append(trial.make_run(rng, left, straight))
            if runs[-1].problems or runs[-1].different:
                _show_failure(trial, runs[-1], seed, number)
    return result_of(name, seed, runs, time.monotonic() - start)


def _show_failure(trial: Trial, run: Run, seed: int, number: int) -> None:
    """Print what went wrong and how to repeat it."""
    if trial.scenario.is_baseline:
        return
    command = shlex.join(['python', 'tools/dev/chaos.py', '--scenarios', trial.name, '--seed',
                          str(seed), '--run', str(number), '--kills', str(len(run.cycles))])
    print(f'{trial.launcher.tail()}\nFAILED: {run.problems} {run.different}\nrepeat it: {command}',
          flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--scenarios', nargs='+', default=list(SCENARIOS), choices=SCENARIOS,
                        metavar='NAME', help=f'the kinds of runs: {"; ".join(SCENARIOS)}')
    parser.add_argument('--kills', type=int, default=12, help='kills of each scenario')
    parser.add_argument('--seed', type=int, default=0, help='seed of the moments')
    parser.add_argument('--run', type=int, help='repeat this run only, which a failure names')
    parser.add_argument('--json', type=Path, help='a file for the results')
    parser.add_argument('--summarise', nargs='+', type=Path, metavar='JSON',
                        help='print a table of the results in these files instead')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if args.summarise:
        print(summarise(read_results(args.summarise)), end='')
        return
    prepare()
    print(f'seed {args.seed}', flush=True)
    results = []
    for name in args.scenarios:
        with tempfile.TemporaryDirectory(prefix='chaos-') as folder:
            data = make_shapes(Path(folder) / 'shapes', train=IMAGES, val=4)
            (Path(folder) / 'runs').mkdir()
            results.append(try_scenario(name, args.kills, args.seed, Path(folder) / 'runs', data,
                                        args.run))
        shown = {key: value for key, value in results[-1].items() if key != 'moments'}
        print(('good: ' if is_good(results[-1]) else 'FAILED: ') + json.dumps(shown), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results) + '\n')
    sys.exit(0 if all(map(is_good, results)) else 1)


if __name__ == '__main__':
    main()
