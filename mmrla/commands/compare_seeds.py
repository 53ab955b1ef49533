r"""Train several configs with several seeds and compare the results in pairs.

    python tools/compare_seeds.py configs/pretrain/r20_cifar_folders.py \
        configs/pretrain/rla_r20_cifar_folders.py --seeds 0 1 2 --work-dir work_dirs/r20
    python tools/compare_seeds.py --from-json work_dirs/r20/results.json   # table and plot again

Every run is tools/train.py, then tools/test.py of the checkpoint that was best
on the validation images (the last one if the config keeps no best one). A config
whose validation images are its test images, and which keeps no best checkpoint,
is not tested again: its last validation is the test. All configs have the same
options and seeds, and with a seed they see the same images in the same order.
The first config is the baseline of the paired differences.

A finished run is not repeated; an interrupted one is resumed. results.json,
table.md and curves.png in the work dir are written after every run.
"""
import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

from mmengine.config import Config

from mmrla.evaluation.seeds import as_markdown, draw, summarise
from mmrla.weights.writing import write_file

from .common import REPO


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    write_file(path, lambda file: file.write(text.encode()))


def call(script: str, *arguments) -> None:
    """Run a tool; its output goes to the screen."""
    subprocess.run([sys.executable, REPO / 'tools' / script, *map(str, arguments)], check=True)


def chosen_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run, else its last."""
    best = sorted(run.glob('best_*.pth'), key=lambda path: path.stat().st_mtime)
    return best[-1] if best else Path((run / 'last_checkpoint').read_text())


def validates_on_test_images(cfg: Config) -> bool:
    """Whether the last validation of a run is the test of its last checkpoint."""
    same = all(cfg.get(f'val_{part}') == cfg.get(f'test_{part}')
               for part in ('dataloader', 'evaluator'))
    return same and not cfg.default_hooks.checkpoint.get('save_best')


def read_log(run: Path, metric: str) -> Dict[str, List]:
    """The validation curve and the mean training loss, by epoch.

    Where the logs of a resumed run overlap, the later one counts.
    """
    curve: Dict[int, float] = {}
    losses: Dict[int, Dict[int, float]] = {}
    for path in sorted(run.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            if metric in scalars:
                curve[scalars['step']] = scalars[metric]
            elif 'loss' in scalars:
                losses.setdefault(scalars['epoch'], {})[scalars['iter']] = scalars['loss']
    return dict(curve=sorted(curve.items()),
                loss=[(epoch, sum(found.values()) / len(found))
                      for epoch, found in sorted(losses.items())])


def train(config: Path, run: Path, options: List[str]) -> Dict[str, float]:
    """Train, or resume; the wall and CPU seconds of all attempts together."""
    path = run / 'cost.json'
    cost = json.loads(path.read_text()) if path.exists() else dict(seconds=0.0, cpu_seconds=0.0)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        call('train.py', config, '--work-dir', run, '--resume', *options)
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cost['seconds'] += time.monotonic() - start
        cost['cpu_seconds'] += (after.ru_utime + after.ru_stime
                                - before.ru_utime - before.ru_stime)
        if run.is_dir():
            write_text(path, json.dumps(cost))
    return cost


def measure(config: Path, seed: int, args: argparse.Namespace) -> Dict[str, Any]:
    """Train and test once; the run for the results file."""
    run = args.work_dir / config.stem / f'seed_{seed}'
    path = run / 'result.json'
    if path.exists():
        return json.loads(path.read_text())
    options = ['--cfg-options', *args.cfg_options, f'randomness.seed={seed}']
    cost = train(config, run, options)
    log = read_log(run, args.metric)
    if not log['curve']:
        raise SystemExit(f'{run} logs no {args.metric}; name a metric of the validation with '
                         '--metric')
    if validates_on_test_images(Config.fromfile(config)):
        value = log['curve'][-1][1]
    else:
        call('test.py', config, chosen_checkpoint(run), '--work-dir', run / 'test', *options)
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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Compare configs over several seeds.')
    parser.add_argument('configs', nargs='*', type=Path, metavar='CONFIG',
                        help='the configs; the first one is the baseline')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--work-dir', type=Path, help='the folder of the runs and the report')
    parser.add_argument('--metric', default='accuracy/top1')
    parser.add_argument('--cfg-options', nargs='+', default=[], metavar='KEY=VALUE')
    parser.add_argument('--from-json', type=Path, metavar='RESULTS',
                        help='only write the table and the plot of a results file again')
    parser.add_argument('--output', type=Path,
                        help='the folder of the report, by default the work dir')
    args = parser.parse_args()
    if args.from_json:
        args.output = args.output or args.from_json.parent
    elif not args.configs or not args.work_dir:
        parser.error('name the configs and --work-dir, or a results file with --from-json')
    for config in args.configs:
        if not config.is_file():
            parser.error(f'config {config} does not exist')
    return args


def main() -> None:
    args = parse_args()
    if args.from_json:
        results = json.loads(args.from_json.read_text())
        write_report(dict(results, summary=summarise(results['runs'])), args.output)
        print(as_markdown(results), end='')
        return
    settings = dict(configs=list(map(str, args.configs)), metric=args.metric,
                    cfg_options=args.cfg_options)
    runs = []
    for seed in args.seeds:  # seed by seed, so that an early end leaves complete pairs
        for config in args.configs:
            runs.append(measure(config, seed, args))
            write_report(dict(settings=settings, runs=runs, summary=summarise(runs)),
                         args.output or args.work_dir)
    print(f'\n{args.metric} on the test images\n{as_markdown(dict(summary=summarise(runs)))}')


if __name__ == '__main__':
    main()
