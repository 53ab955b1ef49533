"""Measure how the cost of RLA grows with the work: depth, hidden channels, image size, batch.

    OMP_NUM_THREADS=2 python tools/dev/measure_growth.py --output docs/performance/growth

Each row changes one setting of ``DEFAULT``. An RLA backbone and mmdet's ResNet of the same
depth run alternately. Times are medians of the ratios of the rounds, with their quartiles. The
norms are in eval mode, and their weights and biases train. ``--from-json`` makes the table and
the plot again.
"""
import argparse
import copy
import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import matplotlib
import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.commands.measurements import (
    interleaved,
    keep_freed_memory,
    quartiles,
    saved_for_backward,
)
from mmrla.models import RLAResNet
from mmrla.models.lean.fuse import fuse
from mmrla.weights.writing import write_file

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

DEFAULT = dict(depth=50, k=32, side=320, batch=1)
VALUES = dict(depth=(18, 34, 50, 101, 152), k=(4, 8, 16, 32, 64),
              side=(160, 320, 640, 1344), batch=(1, 2, 4))
LABELS = dict(depth='depth', k='hidden channels k', side='side of the image', batch='batch')
MODES = dict(train='training step', fused='inference, fused')
SAVED = 'saved for backward'


def settings() -> Iterator[Dict[str, int]]:
    """The settings to measure, each once: one value differs from the default."""
    seen = []
    for name, values in VALUES.items():
        for value in values:
            setting = {**DEFAULT, name: value}
            if setting not in seen:
                seen.append(setting)
                yield setting


def train_step(network: nn.Module, images: Tensor) -> None:
    """Run forward and backward."""
    network.train()  # mmdet's ResNet returns nothing
    network.zero_grad()
    sum(out.mean() for out in network(images)).backward()


@torch.no_grad()
def infer(network: nn.Module, images: Tensor) -> None:
    """Run a network in eval mode."""
    network.eval()
    network(images)


def saved_bytes(network: nn.Module, images: Tensor) -> int:
    """The bytes that a forward pass saves for backward."""
    network.train()
    return saved_for_backward(network, lambda: network(images))


def calls(network: nn.Module, images: Tensor) -> Dict[str, Callable[[], None]]:
    """The functions to time, by mode."""
    fused = fuse(copy.deepcopy(network))
    return dict(train=lambda: train_step(network, images), fused=lambda: infer(fused, images))


def measure(setting: Dict[str, int], rounds: int) -> Dict[str, Any]:
    """The ratios of an RLA backbone to the plain one."""
    shared = dict(depth=setting['depth'], norm_eval=True)
    networks = [MODELS.build(dict(type='mmdet.ResNet', **shared)), RLAResNet(
        rla=dict(channels=setting['k'], variant='v1'), **shared)]
    images = torch.randn(setting['batch'], 3, setting['side'], setting['side'])
    saved = [saved_bytes(network, images) for network in networks]
    pairs = [calls(network, images) for network in networks]
    ratios = {}
    for mode in MODES:
        times = interleaved([pair[mode] for pair in pairs], rounds, warm_up=1)
        ratios[mode] = quartiles(times[:, 1] / times[:, 0])
    return dict(setting, ratios=ratios, saved_ratio=saved[1] / saved[0])


def rows_of(rows: List[Dict[str, Any]], name: str) -> List[Dict[str, Any]]:
    """The rows in which at most one setting differs from the default."""
    others = [other for other in DEFAULT if other != name]
    found = [row for row in rows if all(row[other] == DEFAULT[other] for other in others)]
    return sorted(found, key=lambda row: row[name])


def table(rows: List[Dict[str, Any]]) -> str:
    """A Markdown table of all rows."""
    lines = ['| ' + ' | '.join([*LABELS.values(), *MODES.values(), SAVED]) + ' |',
             '|---' * (len(LABELS) + len(MODES) + 1) + '|']
    for name in VALUES:
        for row in rows_of(rows, name):
            if row[name] == DEFAULT[name] and name != 'depth':
                continue  # the default is in the first group
            times = ['{1:.3f} ({0:.3f} to {2:.3f})'.format(*row['ratios'][mode])
                     for mode in MODES]
            lines.append('| ' + ' | '.join(
                [*(str(row[each]) for each in LABELS), *times, f'{row["saved_ratio"]:.3f}']) + ' |')
    return '\n'.join(lines) + '\n'


def draw(rows: List[Dict[str, Any]], path: Path) -> None:
    """Plot the ratios, a panel for each setting."""
    figure, axes = plt.subplots(1, len(VALUES), figsize=(14, 4), sharey=True,
                                layout='constrained')
    for axis, name in zip(axes, VALUES, strict=True):
        found = rows_of(rows, name)
        places = range(len(found))
        for mode, label in MODES.items():
            low, middle, high = zip(*(row['ratios'][mode] for row in found), strict=True)
            axis.plot(places, middle, marker='o', label=label)
            axis.fill_between(places, low, high, alpha=0.15)
        axis.plot(places, [row['saved_ratio'] for row in found], 'k--', marker='s', label=SAVED)
        axis.axhline(1, color='grey', linewidth=0.8)
        axis.set_xticks(places, [str(row[name]) for row in found])
        axis.set_xlabel(LABELS[name])
    axes[0].set_ylabel("ratio to mmdet's ResNet")
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside upper center', ncols=3)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=9, help='measured rounds of each row')
    parser.add_argument('--output', type=Path, required=True,
                        help='folder for results.json, table.md and growth.png')
    parser.add_argument('--from-json', type=Path, metavar='RESULTS',
                        help='make the table and the plot from this file, without measuring')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    if args.from_json:
        results = json.loads(args.from_json.read_text())
    else:
        keep_freed_memory()
        results = dict(threads=torch.get_num_threads(), rounds=args.rounds, rows=[])
        for setting in settings():
            results['rows'].append(measure(setting, args.rounds))
            print(json.dumps(results['rows'][-1]), flush=True)
    for name, text in {'results.json': json.dumps(results, indent=1) + '\n',
                       'table.md': table(results['rows'])}.items():
        write_file(args.output / name, lambda file, text=text: file.write(text.encode()))
    draw(results['rows'], args.output / 'growth.png')


if __name__ == '__main__':
    main()
