"""The paper's tables beside what its networks count, and what runs measured."""
import functools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Dict, List, Optional

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from .counts import GIGA, MEGA, PaperFlops, count_flops, count_parameters, count_statistics
from .tables import Row, Table

# A detector's shorter side is 800; its images are padded to multiples of 32.
DETECTION_SIZE = (800, 1344)
# The paper's counter looks at modules, and its MobileNetV2 has none for the last
# pooling of 1280 channels from 7x7 to 1x1.
MOBILENET_POOLING = 1280 * (7 * 7 + 1)
# The metric that measures a column: the evaluator's name, and how it is printed.
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


@dataclass(frozen=True)
class Counts:
    """What a network has and does, by the paper's count.

    Attributes:
        parameters: Trainable values.
        statistics: Moving means and variances of the norms.
        flops: For one image; of a detector, its backbone and neck.
    """
    parameters: int
    statistics: int
    flops: int


def build(path: Path) -> nn.Module:
    """The network of a config on the meta device, which takes no memory."""
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
    """Build a config's network and count it."""
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
    """A printed figure, and the count of the network that it belongs to.

    Attributes:
        paper: As printed.
        counted: The count with as many digits.
        difference: The count, unrounded, minus the printed figure.
        equal: Whether all printed digits are the same.
        within: Whether the difference is one that the table allows.
        note: Why the digits differ.
    """
    paper: str
    counted: str
    difference: float
    equal: bool
    within: bool
    note: str = ''


def compare_figure(table: Table, row: Row, column: str, paper: str, root: Path) -> Figure:
    """One printed figure of a counted column."""
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
    """A network's parameters as a table counts them."""
    counts = count(root / f'{config}.py')
    return counts.parameters + (counts.statistics if table.with_statistics else 0)


def compare(table: Table, root: Path, work_dir: Optional[Path] = None) -> List[Dict[str, Any]]:
    """A table's rows beside the counts of its networks.

    Args:
        table: Of :mod:`mmrla.paper.tables`.
        root: The folder ``configs``.
        work_dir: Where runs of the configs are, if accuracies were measured.

    Returns:
        list[dict]: For each row ``name``, ``config``, ``counts`` (None where
        the row is quoted), ``paper`` (the printed figures by column),
        ``figures`` (the counted ones) and ``measured``.
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
            measured=measured(table, row, work_dir) if built and work_dir else {}))
    return rows


def measured(table: Table, row: Row, work_dir: Path) -> Dict[str, float]:
    """What runs of a row's config measured, by column; the mean over seeds.

    A config's runs are in ``{work_dir}/{config}``, as ``tools/train.py`` leaves
    one, or in its ``seed_*``, as ``tools/compare_seeds.py`` leaves several.
    """
    folder = work_dir / Path(row.config).name
    runs = sorted(folder.glob('seed_*')) or [folder]
    results = [result for result in map(last_evaluation, runs) if result]
    found = {}
    for column in table.printed(row):
        metric, shown = METRICS.get(column, (None, None))
        at_hand = [shown(result[metric]) for result in results if metric in result]
        if at_hand:
            found[column] = mean(at_hand)
    return found


def last_evaluation(run: Path) -> Dict[str, float]:
    """The metrics of a run's last test, or else of its last validation."""
    tests = [path for path in run.rglob('*.json') if path.stem == path.parent.name]
    for path in sorted(tests, key=lambda path: path.stat().st_mtime, reverse=True):
        scalars = json.loads(path.read_text())
        if is_evaluation(scalars):
            return scalars
    last: Dict[str, float] = {}
    for path in sorted(run.rglob('vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            last = scalars if is_evaluation(scalars) else last
    return last


def is_evaluation(scalars: Dict[str, Any]) -> bool:
    """Whether a log line has a metric of the tables."""
    return any(metric in scalars for metric, _ in METRICS.values())
