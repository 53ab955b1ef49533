"""Check a data set before a training run.

    python tools/check_dataset.py CONFIG    # the training and validation sets of a config
    python tools/check_dataset.py --coco train.json train2017 --coco val.json val2017
    python tools/check_dataset.py --folders data/imagenet/train --folders data/imagenet/val

The exit code is 0 if no problem was found, 1 if one was found and 2 if a data set
could not be checked.
"""
import argparse
import os
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mmengine.config import Config, ConfigDict

import mmrla  # noqa: F401  (registers the modules)
from mmrla.datasets import checks
from mmrla.datasets.checks import ImageJob, Report
from mmrla.datasets.errors import DataError, printable
from mmrla.engine import preflight
from mmrla.engine.config_checks import ConfigError, register_modules


class Source(NamedTuple):
    """A data set to check.

    Attributes:
        images: Folder of the images, or of the class folders.
        annotations: COCO-format file; None for class folders.
    """
    images: Path
    annotations: Optional[Path] = None


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Check a data set before a training run.')
    parser.add_argument('config', nargs='?', help='check the data sets of a config')
    parser.add_argument('--coco', nargs=2, action='append', default=[], type=Path,
                        metavar=('ANNOTATIONS', 'IMAGES'), help='a data set in COCO format')
    parser.add_argument('--folders', action='append', default=[], type=Path, metavar='FOLDER',
                        help='a data set of class folders, laid out like ImageNet')
    parser.add_argument('--num-classes', type=int, help='number of classes of the model')
    parser.add_argument('--workers', type=int, default=min(8, os.cpu_count() or 1),
                        help='processes that read images; 0 reads in the main process')
    parser.add_argument('--examples', type=int, default=5,
                        help='examples to print of each kind of problem')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.workers < 0:
        parser.error(f'--workers {args.workers} must be 0 or more')
    if not (args.config or args.coco or args.folders):
        parser.error('give a config, --coco or --folders')
    return args


def sources_of(cfg: Config) -> List[Source]:
    """Return the training and validation sets of a config."""
    found = []
    for name in ('train_dataloader', 'val_dataloader'):
        dataset = (cfg.get(name) or {}).get('dataset')
        while isinstance(dataset, ConfigDict) and 'dataset' in dataset:  # e.g. RepeatDataset
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
    """Return ``num_classes`` of the head in the config of a classifier or detector."""
    if isinstance(model, dict):
        for key in ('roi_head', 'bbox_head', 'head'):
            found = _num_classes(model.get(key))
            if found is not None:
                return found
        return model.get('num_classes')
    return _num_classes(model[0]) if isinstance(model, (list, tuple)) and model else None


def with_progress(total: int) -> Callable[[Iterable], Iterator]:
    """Return a wrapper of iterators that shows a progress bar on a terminal."""

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
    """Check all data sets."""
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


def collect_sources(args: argparse.Namespace) -> Tuple[List[Source], Optional[int]]:
    """Return the data sets to check and the number of classes of the model."""
    sources = [Source(images, annotations) for annotations, images in args.coco]
    sources += [Source(folder) for folder in args.folders]
    if not args.config:
        return sources, args.num_classes
    if not Path(args.config).is_file():
        raise DataError(f'config {args.config} does not exist')
    cfg = Config.fromfile(args.config)
    # The heads of a detector are compared with the classes of the config instead.
    is_coco = any(preflight.coco_sources(cfg))
    num_classes = args.num_classes or (None if is_coco else _num_classes(cfg.model))
    return sources + sources_of(cfg), num_classes


def check_classes(report: Report, config: Optional[str]) -> None:
    """Compare the class names and heads of a config with its annotations, as training does."""
    if not config:
        return
    cfg = Config.fromfile(config)
    register_modules(cfg)
    sources = list(preflight.coco_sources(cfg, ('train_dataloader', 'val_dataloader')))
    for source in sources:
        try:
            preflight.check_classes(source)
        except DataError as error:
            report.add('class that is not in the annotations', str(error))
    try:
        preflight.check_heads(cfg, sources)
    except ConfigError as error:
        report.add('num_classes does not match metainfo', str(error))


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    try:
        sources, num_classes = collect_sources(args)
        report = check(sources, num_classes, args.workers, args.examples)
        check_classes(report, args.config)
    except DataError as error:
        print(printable(str(error)), file=sys.stderr)
        sys.exit(2)
    print('\n'.join(report.lines()))
    sys.exit(0 if report.is_fine else 1)


if __name__ == '__main__':
    main()
