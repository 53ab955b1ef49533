"""Draw the embedded detection set: `python tools/make_shapes.py data/shapes`."""
import argparse

from mmrla.datasets import make_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw a small set laid out like COCO 2017.')
    parser.add_argument('folder', help='where the set goes')
    parser.add_argument('--train', type=int, default=600, help='images to train on')
    parser.add_argument('--val', type=int, default=120, help='images to hold out')
    parser.add_argument('--seed', type=int, default=0, help='another seed is another set')
    args = parser.parse_args()
    folder = make_shapes(args.folder, args.train, args.val, args.seed)
    print(f'{args.train} + {args.val} images in {folder}')


if __name__ == '__main__':
    main()
