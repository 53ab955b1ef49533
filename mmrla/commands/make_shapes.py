"""Draw the embedded data: `python tools/make_shapes.py data/shapes`."""
import argparse

from mmrla.datasets import make_class_folders, make_shapes


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Draw a small set laid out like COCO 2017, or in class folders.')
    parser.add_argument('folder', help='where the set goes')
    parser.add_argument('--classification', action='store_true',
                        help='class folders, one shape an image; the numbers are a class\'s')
    parser.add_argument('--train', type=int, help='images to train on (600, or 100 a class)')
    parser.add_argument('--val', type=int, help='images to hold out (120, or 20 a class)')
    parser.add_argument('--seed', type=int, default=0, help='another seed is another set')
    parser.add_argument('--no-class-hues', action='store_true',
                        help='the harder detection set: any class has any hue')
    args = parser.parse_args()
    if args.no_class_hues and args.classification:
        parser.error('--no-class-hues is for the detection set; leave out --classification')
    make = make_class_folders if args.classification else make_shapes
    counts = {name: getattr(args, name) for name in ('train', 'val')
              if getattr(args, name) is not None}
    if args.no_class_hues:
        counts['class_hues'] = False
    print(f'the images are in {make(args.folder, seed=args.seed, **counts)}')


if __name__ == '__main__':
    main()
