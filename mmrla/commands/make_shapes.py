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
    parser.add_argument('--no-class-hues', action='store_true',
                        help='draw the harder detection set, in which hues do not depend on the '
                        'class')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.no_class_hues and args.classification:
        parser.error('--no-class-hues applies to the detection set only; omit --classification')
    make = make_class_folders if args.classification else make_shapes
    options = {name: getattr(args, name) for name in ('train', 'val')
               if getattr(args, name) is not None}
    if args.no_class_hues:
        options['class_hues'] = False
    with clear_errors():
        print(f'the images are in {make(args.folder, seed=args.seed, **options)}')


if __name__ == '__main__':
    main()
