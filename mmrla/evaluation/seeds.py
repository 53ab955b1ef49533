"""Results of several configs with the same seeds: summary, table and plot.

A results file is a JSON file with ``settings``, ``runs`` and ``summary``. The table
and the plot are made from this file. A run is a dict with ``config``,
``seed``, ``value`` (the metric on the test images), ``curve`` and ``loss``
(lists of epoch and value), ``epochs``, ``seconds`` and ``cpu_seconds``.
"""
import itertools
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 20000


def bootstrap_interval(differences: Sequence[float]) -> Tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of paired differences.

    For up to 6 seeds all resamples are enumerated; for more seeds they are sampled
    with a fixed generator. With few seeds the interval is too narrow: for normally
    distributed differences about 68% of the 95% intervals contain the mean with 3
    seeds, and about 84% with 5 seeds. :func:`student_interval` is exact there.

    Args:
        differences: One per seed, at least 2.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) <= 6:
        picks = np.array(list(itertools.product(range(len(values)), repeat=len(values))))
    else:
        picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(values[picks].mean(1), (tail, 100 - tail))
    return float(low), float(high)


def student_interval(differences: Sequence[float]) -> Tuple[float, float]:
    """Return Student's t interval of the mean of at least 2 paired differences."""
    from scipy.stats import t
    n = len(differences)
    half = t.ppf((1 + CONFIDENCE) / 2, n - 1) * stdev(differences) / n**0.5
    return mean(differences) - half, mean(differences) + half


def compare_pairs(ours: Dict[int, float], baseline: Dict[int, float]) -> Dict[str, Any]:
    """Compare a config with the baseline, seed by seed.

    Args:
        ours: The values of the config by seed.
        baseline: The values of the baseline by seed. Only common seeds are compared.
    """
    seeds = sorted(ours.keys() & baseline.keys())
    differences = [ours[seed] - baseline[seed] for seed in seeds]
    result = dict(seeds=seeds, differences=differences)
    if differences:
        result.update(mean=mean(differences), better=sum(d > 0 for d in differences))
    if len(differences) > 1:
        result.update(bootstrap=bootstrap_interval(differences),
                      student=student_interval(differences))
    return result


def summarise(runs: List[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Return the summary of each config; the first config is the baseline."""
    by_config: Dict[str, List[Dict[str, Any]]] = {}
    for run in runs:
        by_config.setdefault(run['config'], []).append(run)
    values = {name: {run['seed']: run['value'] for run in group}
              for name, group in by_config.items()}
    baseline = next(iter(by_config))
    summary = {}
    for name, group in by_config.items():
        found = list(values[name].values())
        summary[name] = dict(
            seeds=sorted(values[name]), mean=mean(found),
            standard_deviation=stdev(found) if len(found) > 1 else None,
            cpu_seconds_per_epoch=mean(run['cpu_seconds'] / run['epochs'] for run in group),
            difference=compare_pairs(values[name], values[baseline]) if name != baseline else None)
    return summary


def as_markdown(results: Dict[str, Any]) -> str:
    """Format a results file as a table in Markdown."""
    summary = results['summary']
    baseline = next(iter(summary))
    cost = summary[baseline]['cpu_seconds_per_epoch']
    lines = ['| config | seeds | mean ± standard deviation | difference to the first, by seed | '
             'mean difference | 95%, bootstrap | 95%, Student | CPU time of an epoch |',
             '|---|---|---|---|---|---|---|---|']
    for name, row in summary.items():
        spread = row['standard_deviation']
        pair = row['difference'] or {}
        lines.append('| ' + ' | '.join([
            name, str(len(row['seeds'])),
            f'{row["mean"]:.4g}' + ('' if spread is None else f' ± {spread:.2g}'),
            ', '.join(f'{value:+.3g}' for value in pair.get('differences', ())),
            f'{pair["mean"]:+.3g}' if 'mean' in pair else '',
            _interval(pair.get('bootstrap')), _interval(pair.get('student')),
            f'{row["cpu_seconds_per_epoch"]:.1f} s, {row["cpu_seconds_per_epoch"] / cost:.2f}',
        ]) + ' |')
    return '\n'.join(lines) + '\n'


def _interval(pair) -> str:
    return '{:+.3g} to {:+.3g}'.format(*pair) if pair else ''


def draw(results: Dict[str, Any], path: Path) -> None:
    """Draw learning curves on the left and paired differences on the right.

    A thin line is one run. The thick line is the mean over the seeds.
    """
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout='constrained')
    names = list(results['summary'])
    for index, name in enumerate(names):
        runs = [run for run in results['runs'] if run['config'] == name]
        colour = f'C{index}'
        for axis, key in zip(axes, ('loss', 'curve'), strict=False):
            _draw_curves(axis, [run[key] for run in runs], colour, name)
    for axis in axes[:2]:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set(xlabel='epoch', ylabel='training loss')
    axes[1].set(xlabel='epoch', ylabel=results['settings']['metric'])
    axes[1].legend(fontsize='x-small')
    axes[2].axvline(0, color='grey', linewidth=0.8)
    for place, name in enumerate(names[1:]):
        pair = results['summary'][name]['difference']
        colour = f'C{place + 1}'
        axes[2].plot(pair['differences'], [place] * len(pair['seeds']), 'o', color=colour,
                     fillstyle='none')
        if 'bootstrap' in pair:
            axes[2].plot(pair['bootstrap'], [place - 0.15] * 2, color=colour, linewidth=3)
            axes[2].plot(pair['mean'], place - 0.15, 'k|', markersize=12)
    axes[2].set(yticks=range(len(names) - 1), yticklabels=names[1:],
                ylim=(len(names) - 1.4, -0.6), xlabel=f'difference to\n{names[0]}, by seed')
    axes[2].tick_params(axis='y', labelsize='x-small')
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curves(axis, curves: Sequence[Sequence[Sequence[float]]], colour: str,
                 name: str) -> None:
    """Draw the curves of the runs of a config, and their mean over common epochs."""
    for curve in curves:
        axis.plot(*zip(*curve, strict=True), '.-', color=colour, linewidth=0.6, alpha=0.5)
    points = [dict(map(tuple, curve)) for curve in curves]
    shared = sorted(set.intersection(*map(set, points)))
    axis.plot(shared, [mean(point[epoch] for point in points) for epoch in shared],
              '.-', color=colour, linewidth=2, markersize=9, label=name)
