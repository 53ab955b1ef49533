r"""Train several configs with several seeds and compare the results in pairs.

    python tools/compare_seeds.py configs/pretrain/r20_cifar_folders.py \
        configs/pretrain/rla_r20_cifar_folders.py --seeds 0 1 2 --work-dir work_dirs/r20
    python tools/compare_seeds.py --from-json work_dirs/r20/results.json   # table and plot only

For each config and seed the command runs tools/train.py, then tools/test.py with the
checkpoint that was best in validation, or with the last one if the config keeps no
best checkpoint. If a config keeps no best checkpoint and validates on its test images,
the last validation is the result, and tools/test.py is not run.

All configs use the same options and seeds. With one seed they see the same images in
the same order. The first config is the baseline of the paired differences. A finished
run is not repeated; an interrupted run is resumed. After every run, results.json,
table.md and curves.png are written to the work dir.
"""
import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from mmengine.config import Config

from mmrla.evaluation.scalars import read_scalars
from mmrla.evaluation.seeds import as_markdown, draw, summarise
from mmrla.weights.writing import write_file

from .configs import read_config
from .paths import REPO


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Train configs with several seeds and compare a metric.')
    parser.add_argument('configs', nargs='*', type=Path, metavar='CONFIG',
                        help='paths of the configs; the first one is the baseline')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2], help='seeds to train')
    parser.add_argument('--work-dir', type=Path, help='folder for all runs')
    parser.add_argument('--metric', default='accuracy/top1', help='metric to compare')
    parser.add_argument('--cfg-options', nargs='+', default=[], metavar='KEY=VALUE',
                        help='settings that override every config')
    parser.add_argument('--from-json', type=Path, metavar='RESULTS',
                        help='train nothing; write the table and the plot of a results file')
    parser.add_argument('--output', type=Path,
                        help='folder for the results file, the table and the plot; default: the '
                        'work dir, or the folder of --from-json')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.from_json:
        if not args.from_json.is_file():
            parser.error(f'results file {args.from_json} does not exist')
        args.output = args.output or args.from_json.parent
        return args
    if not args.configs or not args.work_dir:
        parser.error('give configs and --work-dir, or a results file with --from-json')
    for config in args.configs:
        if not config.is_file():
            parser.error(f'config {config} does not exist')
    args.output = args.output or args.work_dir
    return args


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_file(path, lambda file: file.write(text.encode()))


def run_tool(script: str, *arguments) -> None:
    """Run a script of tools/; its output goes to the terminal."""
    subprocess.run([sys.executable, REPO / 'tools' / script, *map(str, arguments)], check=True)


def chosen_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run, or the last one if there is no best."""
    best = sorted(run.glob('best_*.pth'), key=lambda path: path.stat().st_mtime)
    return best[-1] if best else Path((run / 'last_checkpoint').read_text())


def validates_on_test_images(cfg: Config) -> bool:
    """Return whether the last validation of a run is the test of its last checkpoint."""
    same = all(cfg.get(f'val_{part}') == cfg.get(f'test_{part}')
               for part in ('dataloader', 'evaluator'))
    return same and not cfg.default_hooks.checkpoint.get('save_best')


def read_log(run: Path, metric: str) -> Dict[str, List]:
    """Read the learning curves of a run.

    If the logs of a resumed run overlap, the later entry is used.

    Args:
        run: The work dir.
        metric: Name of the metric in the log.

    Returns:
        dict: ``curve``, pairs of epoch and metric, and ``loss``, pairs of epoch and
        mean training loss.
    """
    curve: Dict[int, float] = {}
    losses: Dict[int, Dict[int, float]] = {}
    for scalars in read_scalars(run):
        if metric in scalars:
            curve[scalars['step']] = scalars[metric]
        elif 'loss' in scalars:
            losses.setdefault(scalars['epoch'], {})[scalars['iter']] = scalars['loss']
    return dict(curve=sorted(curve.items()),
                loss=[(epoch, sum(found.values()) / len(found))
                      for epoch, found in sorted(losses.items())])


def train(config: Path, run: Path, options: List[str]) -> Dict[str, float]:
    """Train or resume, and return the wall and CPU seconds of all attempts."""
    path = run / 'cost.json'
    cost = json.loads(path.read_text()) if path.exists() else dict(seconds=0.0, cpu_seconds=0.0)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        run_tool('train.py', config, '--work-dir', run, '--resume', *options)
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cost['seconds'] += time.monotonic() - start
        cost['cpu_seconds'] += (after.ru_utime + after.ru_stime
                                - before.ru_utime - before.ru_stime)
        if run.is_dir():
            write_text(path, json.dumps(cost))
    return cost


def measure(config: Path, seed: int, args: argparse.Namespace) -> Dict[str, Any]:
    """Train and test once, and return the run for the results file."""
    run = args.work_dir / config.stem / f'seed_{seed}'
    path = run / 'result.json'
    if path.exists():
        return json.loads(path.read_text())
    options = ['--cfg-options', *args.cfg_options, f'randomness.seed={seed}']
    cost = train(config, run, options)
    log = read_log(run, args.metric)
    if not log['curve']:
        raise SystemExit(f'the log of {run} has no metric {args.metric}; give a metric of the '
                         'validation with --metric')
    if validates_on_test_images(read_config(str(config))):
        value = log['curve'][-1][1]
    else:
        run_tool('test.py', config, chosen_checkpoint(run), '--work-dir', run / 'test', *options)
        value = json.loads(sorted((run / 'test').glob('*/*.json'))[-1].read_text())[args.metric]
    result = dict(config=config.stem, seed=seed, value=value, epochs=log['loss'][-1][0], **log,
                  **cost)
    write_text(path, json.dumps(result))
    return result


def write_report(results: Dict[str, Any], folder: Path) -> None:
    """Write results.json, table.md and curves.png."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / 'results.json', json.dumps(results, indent=1) + '\n')
    write_text(folder / 'table.md', as_markdown(results))
    draw(results, folder / 'curves.png')


def compare(args: argparse.Namespace) -> Dict[str, Any]:
    """Run all configs with all seeds, and return the content of the results file."""
    settings = dict(configs=list(map(str, args.configs)), metric=args.metric,
                    cfg_options=args.cfg_options)
    runs: List[Dict[str, Any]] = []
    results: Dict[str, Any] = {}
    # The seeds are the outer loop, so that an interrupted comparison has equal seeds.
    for seed in args.seeds:
        for config in args.configs:
            runs.append(measure(config, seed, args))
            results = dict(settings=settings, runs=runs, summary=summarise(runs))
            write_report(results, args.output)
    return results


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    if args.from_json:
        results = json.loads(args.from_json.read_text())
        results['summary'] = summarise(results['runs'])
        write_report(results, args.output)
    else:
        results = compare(args)
        print(f'\n{args.metric} on the test images')
    print(as_markdown(results), end='')


if __name__ == '__main__':
    main()
