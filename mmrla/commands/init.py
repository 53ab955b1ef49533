r"""Look at a folder of annotated images and write a config for it.

    mmrla init DATA                 # writes DATA.py
    mmrla init DATA -o mine.py --detector mask_rcnn

DATA is in COCO's, YOLO's or Pascal VOC's format, with a validation part or without. What is
not in COCO's format is converted; DATA itself is not changed.
"""
import argparse
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

import mmrla  # noqa: F401  (registers the modules)
from mmrla.datasets.checks import HARMLESS, Report, check_coco
from mmrla.datasets.conversion import Dataset, Split, find_dataset, split_off, write_split
from mmrla.datasets.conversion.splits import VAL_SHARE
from mmrla.datasets.errors import DataError

from .config_template import Plan, config_text
from .errors import clear_errors
from .logs import silence_logs
from .screen import SHOWN_ROWS, console, say, table

DETECTORS = ('faster_rcnn', 'mask_rcnn', 'retinanet')
# Below this memory (GB) of a GPU, images of 1333x800 do not fit with a useful batch.
LARGE_GPU = 7.5


class Sizes(NamedTuple):
    """The images and boxes of a split.

    Attributes:
        images: (width, height) of each image.
        boxes: Area of each box in pixels.
        per_class: Number of boxes, by class name.
    """
    images: np.ndarray
    boxes: np.ndarray
    per_class: Counter


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Look at a folder of annotated images and write a config for it.')
    parser.add_argument('data', type=Path, help='folder of the data set')
    parser.add_argument('-o', '--out', type=Path, help='the config to write (DATA.py)')
    parser.add_argument('--detector', choices=DETECTORS, default='faster_rcnn',
                        help='the detector to train (faster_rcnn)')
    parser.add_argument('--val-share', type=float, default=VAL_SHARE,
                        help='share of the images to hold out if there is no validation part '
                        f'({VAL_SHARE})')
    parser.add_argument('--epochs', type=int, help='by default by the number of images')
    parser.add_argument('--force', action='store_true', help='overwrite an existing config')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    args.out = args.out or Path(f'{args.data.resolve().name}.py')
    if args.out.suffix != '.py':
        parser.error(f'--out {args.out} must end in .py')
    if not 0 < args.val_share < 1:
        parser.error(f'--val-share {args.val_share} must be between 0 and 1')
    if args.epochs is not None and args.epochs < 1:
        parser.error(f'--epochs {args.epochs} must be 1 or more')
    if args.out.exists() and not args.force:
        parser.error(f'{args.out} exists; overwrite it with --force, or name another with --out')
    return args


def sizes_of(split: Split) -> Sizes:
    """Measure a split."""
    content = split.content
    names = {category['id']: category['name'] for category in content['categories']}
    boxes = [item['bbox'] for item in content['annotations'] if item.get('bbox')]
    return Sizes(
        np.array([(image.get('width') or 0, image.get('height') or 0)
                  for image in content['images']]).reshape(-1, 2),
        np.array([box[2] * box[3] for box in boxes]),
        Counter(names.get(item['category_id'], '?') for item in content['annotations']))


def prepare(args: argparse.Namespace) -> Tuple[Dataset, List[str]]:
    """Read the data set; split and convert what must be. Returns notes for people, too."""
    dataset = find_dataset(args.data)
    splits, notes = dict(dataset.splits), list(dataset.notes)
    if 'val' not in splits and 'test' in splits:
        splits['val'] = splits['test']
        notes.append('there is no validation part: the test part is used to validate')
    if 'val' not in splits:
        splits['train'], splits['val'] = split_off(splits['train'], args.val_share)
        notes.append(f'there is no validation part: {len(splits["val"].content["images"])} images '
                     'are held out, by a hash of their names')
    folder = args.out.with_suffix('').with_name(f'{args.out.stem}_annotations')
    written = [name for name in ('train', 'val') if splits[name].path is None]
    for name in written:
        splits[name] = write_split(splits[name], folder / f'{name}.json')
    if written:
        files = ' and '.join(f'{name}.json' for name in written)
        notes.append(f'COCO-format annotations are written to {folder}/: {files}')
    return dataset._replace(splits=splits), notes


def has_masks(dataset: Dataset) -> bool:
    """Return whether nearly all training objects have an outline."""
    items = dataset.splits['train'].content['annotations']
    return bool(items) and np.mean([bool(item.get('segmentation')) for item in items]) > 0.95


def make_plan(args: argparse.Namespace, dataset: Dataset, sizes: Sizes) -> Plan:
    """Choose model, scale, batch and schedule for the data and the machine."""
    if args.detector == 'mask_rcnn' and not has_masks(dataset):
        raise DataError(f'--detector mask_rcnn needs an outline ("segmentation") of every object, '
                        f'which {args.data} does not have; use faster_rcnn')
    known = sizes.images[sizes.images.min(1) > 0] if len(sizes.images) else sizes.images
    long, short = (np.median(known.max(1)), np.median(known.min(1))) if len(known) else (640, 480)
    images = len(dataset.splits['train'].content['images'])
    if not torch.cuda.is_available():
        side = int(min(320, max(128, 32 * round(long / 32))))
        return Plan.small(args.detector, (side, side), images, args.epochs)
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    scale = (1333, 800) if memory >= LARGE_GPU else (800, 512)
    if long < 400:  # small images gain nothing from the full scale
        scale = (int(32 * round(long / 16)), int(32 * round(short / 16)))
    pixels = scale[0] * scale[1] / (1333 * 800)
    batch = int(max(1, min(16, (memory - 1.5) / (2.2 * max(pixels, 0.1)))))
    return Plan.large(args.detector, scale, batch, images, args.epochs)


def show(dataset: Dataset, sizes: Dict[str, Sizes], notes: List[str]) -> None:
    """Print what was found."""
    rows = []
    for name, size in sizes.items():
        known = size.images[size.images.min(1) > 0] if len(size.images) else size.images
        median = '{:.0f} x {:.0f}'.format(*np.median(known, 0)) if len(known) else '?'
        parts = np.histogram(size.boxes, (0, 32**2, 96**2, np.inf))[0]
        total = max(1, len(size.boxes))
        rows.append((name, f'{len(size.images):,}', f'{len(size.boxes):,}', median,
                     ' / '.join(f'{100 * part / total:.0f}' for part in parts)))
    console.print(table(f'{dataset.root}: {dataset.format}, {len(dataset.classes)} classes',
                        ('part', 'images', 'boxes', 'median size', 'small / medium / large, %'),
                        rows))
    counts = [(name, *(size.per_class[name] for size in sizes.values()))
              for name in dataset.classes]
    counts.sort(key=lambda row: -row[1])
    shown = counts if len(counts) <= SHOWN_ROWS else counts[:SHOWN_ROWS - 2]
    console.print(table('boxes per class', ('class', *sizes), shown))
    if len(shown) < len(counts):
        say(f'... and {len(counts) - len(shown)} more; the rarest is '
            f'{counts[-1][0]!r} with {counts[-1][1]}')
    for note in notes:
        say(f'note: {note}')


def problems(dataset: Dataset) -> List[str]:
    """What is unusual or wrong in the annotations, one line for each kind."""
    report = Report(examples=1)
    for name in ('train', 'val'):
        split = dataset.splits[name]
        check_coco(report, split.path, split.images)
    return [f'{"note" if kind in HARMLESS else "looks wrong"}: {count} x {kind}, such as '
            f'{report.found[kind][0]}' for kind, count in report.counts.most_common()]


def run(args: argparse.Namespace) -> None:
    """Look, convert, write the config and say what to do next."""
    dataset, notes = prepare(args)
    sizes = {name: sizes_of(dataset.splits[name]) for name in ('train', 'val')}
    if not len(sizes['train'].boxes):
        raise DataError(f'the training part of {args.data} has no boxes')
    plan = make_plan(args, dataset, sizes['train'])
    show(dataset, sizes, notes)
    for line in problems(dataset):
        say(line)
    args.out.write_text(config_text(dataset, plan, args.out))
    say(f'\n{args.out}: {plan}')
    say(f'next:  mmrla train {args.out}\n'
        f'       mmrla report work_dirs/{args.out.stem}')


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    silence_logs()
    with clear_errors():
        run(args)


if __name__ == '__main__':
    main()
