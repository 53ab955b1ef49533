"""Draw what a training run did: `python tools/summarize_run.py work_dirs/demo`.

Writes `curves.png`, the loss and the AP, into the run's folder, and
`detections.png`, a sheet of the pictures that `tools/test.py --show-dir` drew
below it, where there are any. Prints the last evaluation.
"""
import argparse
import json
from pathlib import Path
from typing import Dict, List, Tuple

import cv2
import matplotlib
import numpy as np

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

Curve = List[Tuple[int, float]]
METRICS = ('coco/bbox_mAP', 'coco/segm_mAP', 'accuracy/top1')


def read_curves(run: Path) -> Dict[str, Curve]:
    """The loss by iteration and the metrics by epoch.

    A run that was resumed has several logs; where they overlap the later one
    counts.
    """
    curves: Dict[str, Dict[int, float]] = {}
    for path in sorted(run.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            for name in ('loss', *METRICS):
                if name in scalars:
                    curves.setdefault(name, {})[scalars['step']] = scalars[name]
    return {name: sorted(points.items()) for name, points in curves.items()}


def draw_curves(curves: Dict[str, Curve], path: Path) -> None:
    """The loss on the left, the metrics on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout='constrained')
    left.plot(*zip(*curves['loss'], strict=True), color='tab:red')
    left.set(xlabel='iteration', ylabel='training loss', ylim=(0, None))
    for name in METRICS:
        if name in curves:
            right.plot(*zip(*curves[name], strict=True), marker='o', label=name)
    right.set(xlabel='epoch', ylabel='held-out images', ylim=(0, None))
    right.legend(loc='lower right')
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_sheet(pictures: List[Path], path: Path, columns: int = 3, height: int = 200) -> None:
    """A sheet of pictures, all of one height, rows padded to one width."""
    images = [cv2.imread(str(picture)) for picture in pictures]
    images = [cv2.resize(image, (round(image.shape[1] * height / image.shape[0]), height),
                         interpolation=cv2.INTER_AREA) for image in images]
    rows = [np.hstack(images[i:i + columns]) for i in range(0, len(images), columns)]
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
            for row in rows]
    cv2.imwrite(str(path), np.vstack(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw what a training run did.')
    parser.add_argument('run', type=Path, help='the work dir of the run')
    parser.add_argument('--pictures', type=int, default=12, help='how many on the sheet')
    args = parser.parse_args()
    curves = read_curves(args.run)
    if 'loss' not in curves:
        raise SystemExit(f'{args.run} holds no log of a training (*/vis_data/scalars.json)')
    draw_curves(curves, args.run / 'curves.png')
    print(f'loss: {curves["loss"][0][1]:.3f} at first, {curves["loss"][-1][1]:.3f} at last')
    for name in METRICS:
        if name in curves:
            epoch, value = curves[name][-1]
            print(f'{name}: {value:.3f} after epoch {epoch}')
    print(f'curves: {args.run / "curves.png"}')
    pictures = sorted(args.run.glob('**/detections/*.png'), key=lambda path: path.stat().st_mtime)
    if pictures:
        draw_sheet(pictures[-args.pictures:], args.run / 'detections.png')
        print(f'detections: {args.run / "detections.png"} (ground truth left, found right)')
        print(f'            {pictures[-1].parent}')


if __name__ == '__main__':
    main()
