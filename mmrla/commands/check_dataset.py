"""Look for what is wrong with a data set before it stops a training.

    python tools/check_dataset.py CONFIG    # what it trains and validates on
    python tools/check_dataset.py --coco train.json train2017 --coco val.json val2017
    python tools/check_dataset.py --folders data/imagenet/train --folders data/imagenet/val

Ends with 0 if nothing is wrong, 1 if something is, 2 if it cannot be told.
"""
import argparse
import os
import sys
from pathlib import Path
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional

from mmengine.config import Config, ConfigDict

import mmrla  # noqa: F401  (registers the modules and mends the stack)
from mmrla.datasets import checks
from mmrla.datasets.checks import ImageJob, Report
from mmrla.datasets.errors import DataError


class Source(NamedTuple):
    """A set to look at: class folders, or annotations and images."""
    images: Path
    annotations: Optional[Path] = None


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Look for what is wrong with a data set.')
    parser.add_argument('config', nargs='?', help='look at the data sets of a config')
    parser.add_argument('--coco', nargs=2, action='append', default=[], type=Path,
                        metavar=('ANNOTATIONS', 'IMAGES'), help='a COCO-format set')
    parser.add_argument('--folders', action='append', default=[], type=Path, metavar='FOLDER',
                        help='class folders, as ImageNet\'s')
    parser.add_argument('--num-classes', type=int, help='how many classes the model has')
    parser.add_argument('--workers', type=int, default=min(8, os.cpu_count() or 1),
                        help='processes that read images; 0: this one alone')
    parser.add_argument('--examples', type=int, default=5, help='how many of each kind to show')
    args = parser.parse_args()
    if args.workers < 0:
        parser.error(f'--workers {args.workers} must be 0 or more')
    if not (args.config or args.coco or args.folders):
        parser.error('name a config, --coco or --folders')
    return args


def sources_of(cfg: Config) -> List[Source]:
    """The data sets that a config trains and validates on."""
    found = []
    for name in ('train_dataloader', 'val_dataloader'):
        dataset = (cfg.get(name) or {}).get('dataset')
        while isinstance(dataset, ConfigDict) and 'dataset' in dataset:  # RepeatDataset and such
            dataset = dataset.dataset
        if dataset:
            found.append(_source_of(dataset))
    return found


def _source_of(dataset: ConfigDict) -> Source:
    root = Path(dataset.get('data_root') or '')
    prefix = dataset.get('data_prefix') or ''
    if isinstance(prefix, dict):
        prefix = prefix.get('img') or prefix.get('img_path') or ''
    if dataset.get('ann_file') and str(dataset.ann_file).endswith('.json'):
        return Source(root / prefix, root / dataset.ann_file)
    if prefix or not dataset.get('split'):
        return Source(root / prefix)
    return Source(root / dataset.split)


def _num_classes(model: Any) -> Optional[int]:
    """The ``num_classes`` of a model's config: a classifier's or detector's head's."""
    if isinstance(model, dict):
        for key in ('roi_head', 'bbox_head', 'head'):
            found = _num_classes(model.get(key))
            if found is not None:
                return found
        return model.get('num_classes')
    return _num_classes(model[0]) if isinstance(model, (list, tuple)) and model else None


def with_progress(total: int):
    """Show how far an iterator of so many is, on a terminal."""

    def show(items: Iterable) -> Iterator:
        step = max(1, total // 100)
        for number, item in enumerate(items, 1):
            if sys.stderr.isatty() and (number % step == 0 or number == total):
                bar = '#' * (40 * number // total)
                sys.stderr.write(f'\r[{bar:40}] {number}/{total} images')
            yield item
        if sys.stderr.isatty():
            sys.stderr.write('\n')

    return show


def check(sources: List[Source], num_classes: Optional[int], workers: int,
          examples: int) -> Report:
    """Look at all of them."""
    report = Report(examples)
    sets: List[List[ImageJob]] = []
    for source in sources:
        if source.annotations is None:
            sets.append(checks.check_folders(report, source.images, num_classes))
        else:
            sets.append(checks.check_coco(report, source.annotations, source.images, num_classes))
    jobs = [job for jobs in sets for job in jobs]
    checks.check_images(report, jobs, workers, with_progress(len(jobs)))
    if len(sets) == 2:
        checks.check_overlap(report, *sets)
    return report


def main() -> None:
    args = parse_args()
    num_classes = args.num_classes
    sources = [Source(images, annotations) for annotations, images in args.coco]
    sources += [Source(folder) for folder in args.folders]
    if args.config:
        if not Path(args.config).is_file():
            print(f'config {args.config} does not exist', file=sys.stderr)
            sys.exit(2)
        cfg = Config.fromfile(args.config)
        sources += sources_of(cfg)
        num_classes = num_classes or _num_classes(cfg.model)
    try:
        report = check(sources, num_classes, args.workers, args.examples)
    except DataError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print('\n'.join(report.lines()))
    sys.exit(0 if report.is_fine else 1)


if __name__ == '__main__':
    main()
