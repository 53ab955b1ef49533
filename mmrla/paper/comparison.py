"""Comparing the paper's tables with counts of the configs and with the results of runs."""
import functools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Dict, Iterable, List, Optional

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmrla.evaluation.scalars import read_scalars

from .counts import GIGA, MEGA, PaperFlops, count_flops, count_parameters, count_statistics
from .tables import Row, Table

# The shorter side of an image is 800; images are padded to multiples of 32.
DETECTION_SIZE = (800, 1344)
# The paper counts by module. Its MobileNetV2 has no module for the last pooling of
# 1280 channels from 7x7 to 1x1, so that this pooling is not in the printed FLOPs.
MOBILENET_POOLING = 1280 * (7 * 7 + 1)
# The metric of each column: its name in the log, and the function that the paper prints.
ERROR, PERCENT, SAME = (lambda x: 100 - x), (lambda x: 100 * x), (lambda x: x)
METRICS = {
    'Top-1 err.': ('accuracy/top1', ERROR), 'Top-5 err.': ('accuracy/top5', ERROR),
    'Error': ('accuracy/top1', ERROR), 'Re-impl.': ('accuracy/top1', ERROR),
    'RLA-Net': ('accuracy/top1', ERROR),
    'Top-1 acc.': ('accuracy/top1', SAME), 'Top-5 acc.': ('accuracy/top5', SAME),
    'AP': ('coco/bbox_mAP', PERCENT), 'AP50': ('coco/bbox_mAP_50', PERCENT),
    'AP75': ('coco/bbox_mAP_75', PERCENT), 'APS': ('coco/bbox_mAP_s', PERCENT),
    'APM': ('coco/bbox_mAP_m', PERCENT), 'APL': ('coco/bbox_mAP_l', PERCENT),
    'APbb': ('coco/bbox_mAP', PERCENT), 'APbb50': ('coco/bbox_mAP_50', PERCENT),
    'APbb75': ('coco/bbox_mAP_75', PERCENT), 'APm': ('coco/segm_mAP', PERCENT),
    'APm50': ('coco/segm_mAP_50', PERCENT), 'APm75': ('coco/segm_mAP_75', PERCENT),
}
# For each column of improvements: the column of its figures, and the sign of an improvement.
IMPROVEMENTS = {'↑Acc1': ('Top-1 err.', -1), '↑AP': ('AP', 1), '↑APbb': ('APbb', 1),
                '↑APm': ('APm', 1)}


@dataclass(frozen=True)
class Counts:
    """Counts of a network by the paper's rules.

    Attributes:
        parameters: Number of trainable values.
        statistics: Number of running means and variances of the norms.
        flops: FLOPs for one image; for a detector, of the backbone and neck.
    """
    parameters: int
    statistics: int
    flops: int


def build(path: Path) -> nn.Module:
    """Build the network of a config on the meta device, which needs no memory."""
    cfg = Config.fromfile(path)
    if cfg.default_scope == 'mmdet':
        from mmdet.utils import register_all_modules
    else:
        from mmpretrain.utils import register_all_modules
    register_all_modules(init_default_scope=False)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return MODELS.build(cfg.model).eval()


@functools.cache
def count(path: Path) -> Counts:
    """Build the network of a config and count it."""
    model = build(path)
    with torch.device('meta'):
        if hasattr(model, 'extract_feat') and not hasattr(model, 'head'):
            with PaperFlops() as counter, torch.no_grad():
                model.extract_feat(torch.zeros(1, 3, *DETECTION_SIZE))
            flops = counter.total
        else:
            flops = count_flops(model, (32, 32) if 'cifar' in path.stem else (224, 224))
    return Counts(count_parameters(model), count_statistics(model), flops)


@dataclass(frozen=True)
class Figure:
    """A printed figure and the count of its network.

    Attributes:
        paper: The printed figure.
        counted: The count with the same number of digits.
        difference: The unrounded count minus the printed figure.
        equal: Whether all printed digits agree.
        within: Whether the difference is within the tolerance of the table.
        note: The reason for a difference.
    """
    paper: str
    counted: str
    difference: float
    equal: bool
    within: bool
    note: str = ''


def compare_figure(table: Table, row: Row, column: str, paper: str, root: Path) -> Figure:
    """Compare a printed figure with the count."""
    sign, number, digits, letter = re.fullmatch(r'(\+?)(\d+\.(\d+))([MG])', paper).groups()
    counts = count(root / f'{row.config}.py')
    if column == 'FLOPs':
        value = counts.flops / GIGA if letter == 'G' else (counts.flops - MOBILENET_POOLING) / MEGA
    else:
        value = values(table, row.config, root)
        if column.startswith('Δ'):
            value -= values(table, row.base, root)
        value /= table.unit
    counted = f'{sign}{value:.{len(digits)}f}{letter}'
    difference = value - float(number)
    equal = counted == paper
    return Figure(paper, counted, difference, equal, equal or abs(difference) <= table.tolerance,
                  '' if equal else table.notes.get((row.name, column), ''))


def values(table: Table, config: str, root: Path) -> int:
    """Return the parameters of a network by the rules of a table."""
    counts = count(root / f'{config}.py')
    return counts.parameters + (counts.statistics if table.with_statistics else 0)


def compare(table: Table, root: Path, work_dir: Optional[Path] = None) -> List[Dict[str, Any]]:
    """Compare the rows of a table with the counts of its networks.

    Args:
        table: A table of :mod:`mmrla.paper.tables`.
        root: The folder ``configs``.
        work_dir: Folder of runs of the configs, or None.

    Returns:
        list[dict]: For each row ``name``, ``config``, ``counts`` (None if the
        paper quotes the row), ``paper`` (the printed figures by column),
        ``figures`` (the compared figures by column), ``measured`` (the results
        of runs by column) and ``deltas`` (see :func:`deltas`).
    """
    rows = []
    for row in table.rows:
        printed = table.printed(row)
        built = row.config is not None
        rows.append(dict(
            name=row.name, config=row.config, paper=printed,
            counts=asdict(count(root / f'{row.config}.py')) if built else None,
            figures={column: compare_figure(table, row, column, paper, root)
                     for column, paper in printed.items() if built and column in table.counted},
            measured=measured(table, row, work_dir) if built and work_dir else {},
            deltas=deltas(table, row, root, work_dir)))
    return rows


def deltas(table: Table, row: Row, root: Path, work_dir: Optional[Path]) -> Dict[str, float]:
    """Return the differences between a row and the same network without RLA.

    Args:
        table: A table of :mod:`mmrla.paper.tables`.
        row: A row of the table.
        root: The folder ``configs``.
        work_dir: Folder of runs of the configs, or None.

    Returns:
        dict[str, float]: The counted ``parameters`` and ``flops``. If ``work_dir``
        has runs of both configs, also the measured improvements by column and
        ``training time``, the ratio of the seconds per iteration. Empty for a row
        without RLA.
    """
    base = table.base_of(row)
    if base is None or not (root / f'{base}.py').is_file():
        return {}
    ours, plain = (count(root / f'{config}.py') for config in (row.config, base))
    found = dict(parameters=ours.parameters - plain.parameters, flops=ours.flops - plain.flops)
    if work_dir is None:
        return found
    results = [results_of(table, config, work_dir, table.columns)
               for config in (row.config, base)]
    for name, (column, sign) in IMPROVEMENTS.items():
        if name in table.columns and all(column in result for result in results):
            found[name] = sign * (results[0][column] - results[1][column])
    times = [seconds_per_iteration(work_dir / Path(config).name) for config in (row.config, base)]
    if all(times):
        found['training time'] = times[0] / times[1]
    return found


def runs_of(folder: Path) -> List[Path]:
    """Return the runs of a config: its folders ``seed_*``, or the folder itself."""
    return sorted(folder.glob('seed_*')) or [folder]


def seconds_per_iteration(folder: Path) -> Optional[float]:
    """Return the median of the logged seconds per training iteration; None without logs."""
    times = [scalars['time'] for run in runs_of(folder) for scalars in read_scalars(run)
             if 'loss' in scalars and 'time' in scalars]
    return median(times) if times else None


def measured(table: Table, row: Row, work_dir: Path) -> Dict[str, float]:
    """Return the results of runs of a config by column, averaged over the seeds.

    The run of a config is in ``{work_dir}/{config}``, where ``tools/train.py``
    writes it, or its runs are in ``{work_dir}/{config}/seed_*``, where
    ``tools/compare_seeds.py`` writes them.
    """
    return results_of(table, row.config, work_dir, table.printed(row))


def results_of(table: Table, config: str, work_dir: Path,
               columns: Iterable[str]) -> Dict[str, float]:
    """Return the mean results of the runs of a config, by column."""
    evaluate = last_test if table.measured_on == 'test' else last_evaluation
    results = [result for result in map(evaluate, runs_of(work_dir / Path(config).name)) if result]
    found = {}
    for column in columns:
        metric, shown = METRICS.get(column, (None, None))
        numbers = [shown(result[metric]) for result in results if metric in result]
        if numbers:
            found[column] = mean(numbers)
    return found


def last_test(run: Path) -> Dict[str, float]:
    """Return the metrics of the last test of a run; empty if there is none."""
    tests = [path for path in run.rglob('*.json') if path.stem == path.parent.name]
    for path in sorted(tests, key=lambda path: path.stat().st_mtime, reverse=True):
        scalars = json.loads(path.read_text())
        if is_evaluation(scalars):
            return scalars
    return {}


def last_evaluation(run: Path) -> Dict[str, float]:
    """Return the metrics of the last test of a run, or of its last validation.

    This is only for tables whose figures are of the validation images.
    """
    tested = last_test(run)
    if tested:
        return tested
    validations = [scalars for scalars in read_scalars(run) if is_evaluation(scalars)]
    return validations[-1] if validations else {}


def is_evaluation(scalars: Dict[str, Any]) -> bool:
    """Return whether a log entry has a metric of the tables."""
    return any(metric in scalars for metric, _ in METRICS.values())
