"""Draw the embedded data sets: ``python tools/make_shapes.py data/shapes``."""
import argparse
from typing import Optional, Sequence

from mmrla.datasets import make_class_folders, make_shapes

from .errors import clear_errors


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Draw a small data set, laid out like COCO 2017 or in class folders.')
    parser.add_argument('folder', help='folder to write')
    parser.add_argument('--classification', action='store_true',
                        help='write class folders with one shape per image; --train and --val are '
                        'counts per class')
    parser.add_argument('--train', type=int, help='training images (600, or 100 per class)')
    parser.add_argument('--val', type=int, help='validation images (120, or 20 per class)')
    parser.add_argument('--seed', type=int, default=0, help='seed of the drawing')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    make = make_class_folders if args.classification else make_shapes
    counts = {name: getattr(args, name) for name in ('train', 'val')
              if getattr(args, name) is not None}
    with clear_errors():
        print(f'the images are in {make(args.folder, seed=args.seed, **counts)}')


if __name__ == '__main__':
    main()
