"""Draw the curves and detections of a run: ``python tools/summarize_run.py work_dirs/demo``.

Writes ``curves.png`` with the loss and the metrics into the work dir, and
``detections.png`` with the pictures that ``tools/test.py --show-dir detections`` drew
below it, if there are any. Prints the last evaluation.
"""
import argparse
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import cv2
import matplotlib
import numpy as np

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

from mmrla.evaluation.scalars import read_scalars  # noqa: E402
from mmrla.weights.writing import write_file  # noqa: E402

Curve = List[Tuple[int, float]]
METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'accuracy/top1')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Draw the curves and detections of a run.')
    parser.add_argument('run', type=Path, help='work dir of the run')
    parser.add_argument('--pictures', type=int, default=12,
                        help='number of pictures in detections.png')
    return parser


def read_curves(run: Path) -> Dict[str, Curve]:
    """Read the loss by iteration and the metrics by epoch.

    A resumed run has several logs; where they overlap, the later one counts.
    """
    curves: Dict[str, Dict[int, float]] = {}
    for scalars in read_scalars(run):
        for name in ('loss', *METRICS):
            if name in scalars:
                curves.setdefault(name, {})[scalars['step']] = scalars[name]
    return {name: sorted(points.items()) for name, points in curves.items()}


def draw_curves(curves: Dict[str, Curve], path: Path) -> None:
    """Draw the loss on the left and the metrics on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout='constrained')
    left.plot(*zip(*curves['loss'], strict=True), color='tab:red')
    left.set(xlabel='iteration', ylabel='training loss', ylim=(0, None))
    for name in METRICS:
        if name in curves:
            right.plot(*zip(*curves[name], strict=True), marker='o', label=name)
    right.set(xlabel='epoch', ylabel='validation', ylim=(0, None))
    if right.get_legend_handles_labels()[0]:
        right.legend(loc='lower right')
    write_file(path, lambda file: figure.savefig(file, dpi=120, format='png'))
    plt.close(figure)


def draw_sheet(pictures: List[Path], path: Path, columns: int = 3, height: int = 200) -> None:
    """Tile pictures, scaled to one height, in rows of equal width."""
    images = [cv2.imread(str(picture)) for picture in pictures]
    images = [cv2.resize(image, (round(image.shape[1] * height / image.shape[0]), height),
                         interpolation=cv2.INTER_AREA) for image in images]
    rows = [np.hstack(images[i:i + columns]) for i in range(0, len(images), columns)]
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
            for row in rows]
    encoded = cv2.imencode('.png', np.vstack(rows))[1]
    write_file(path, lambda file: file.write(encoded.tobytes()))


def print_results(curves: Dict[str, Curve]) -> None:
    """Print the first and last loss and the last evaluation."""
    print(f'loss: {curves["loss"][0][1]:.3f} (first), {curves["loss"][-1][1]:.3f} (last)')
    for name in METRICS:
        if name in curves:
            epoch, value = curves[name][-1]
            print(f'{name}: {value:.3f} after epoch {epoch}')


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    curves = read_curves(args.run)
    if 'loss' not in curves:
        raise SystemExit(f'{args.run} has no training log (*/vis_data/scalars.json)')
    draw_curves(curves, args.run / 'curves.png')
    print_results(curves)
    print(f'curves: {args.run / "curves.png"}')
    pictures = sorted(args.run.glob('**/detections/*.png'), key=lambda path: path.stat().st_mtime)
    if pictures:
        draw_sheet(pictures[-args.pictures:], args.run / 'detections.png')
        print(f'detections: {args.run / "detections.png"} (left: ground truth, right: '
              'predictions)')
        print(f'            {pictures[-1].parent}')


if __name__ == '__main__':
    main()
