r"""Draw what RLA does inside a network, for one image, as one picture.

    python tools/look_inside.py CONFIG CHECKPOINT IMAGE inside.png
    python tools/look_inside.py CONFIG CHECKPOINT IMAGE inside.png \
        --plain PLAIN_CONFIG PLAIN_CHECKPOINT

A column is a block, from the image to the output. The rows are the feature maps
without RLA and with it, the hidden state, and the share of each block's first
convolution that reads the hidden state (L1 norm of its weights). "Without" is
the network that --plain names; else it is the same weights with a hidden state
that no block reads. A map is the mean over channels of the absolute values,
scaled to its own largest value.
"""
import argparse
from pathlib import Path
from typing import List, Optional, Sequence

import cv2
import matplotlib
import numpy as np
import torch

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402
from mmengine.config import Config  # noqa: E402
from torch import Tensor  # noqa: E402

from mmrla.paper.figures import Step, hidden_state_unread, run_along_depth  # noqa: E402
from mmrla.weights.writing import write_file  # noqa: E402

from .common import read_backbone, silence  # noqa: E402

MAX_COLUMNS = 16


def read_image(path: str, config: str, size: Optional[int]) -> Sequence:
    """An image as it is, RGB, and as the config's network takes it.

    Args:
        path: Of the image.
        config: Its data preprocessor has the mean and deviation.
        size: The shorter side, or None for the image's own.
    """
    image = cv2.imread(path)
    if image is None:
        raise SystemExit(f'image {path} cannot be read')
    if size:
        factor = size / min(image.shape[:2])
        image = cv2.resize(image, None, fx=factor, fy=factor)
    cfg = Config.fromfile(config)
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    mean, std = (np.array(preprocessor.get(name) or [default] * 3, dtype=np.float32)
                 for name, default in (('mean', 0), ('std', 1)))
    rgb = image[..., ::-1]
    to_rgb = preprocessor.get('to_rgb') or preprocessor.get('bgr_to_rgb')
    normal = ((rgb if to_rgb else image) - mean) / std
    return rgb, torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))[None]


def as_map(features: Tensor) -> np.ndarray:
    """(1, C, H, W) to (H, W): the mean absolute value, scaled to 1."""
    values = features[0].abs().mean(0)
    return (values / values.max().clamp(min=1e-12)).cpu().numpy()


def chosen(count: int) -> List[int]:
    """At most 16 blocks, evenly along the depth."""
    return sorted(set(np.linspace(0, count - 1, min(count, MAX_COLUMNS)).round().astype(int)))


def draw_maps(rows: Sequence, axes: np.ndarray, blocks: Sequence[int],
              names: Sequence[str]) -> None:
    """A row of maps for each kind; a missing one stays empty."""
    for row, (maps, name) in enumerate(zip(rows, names, strict=True)):
        for column, block in enumerate(blocks):
            ax = axes[row, column]
            ax.set(xticks=[], yticks=[])
            if maps[block] is None:
                ax.set_axis_off()
                ax.text(0.5, 0.5, 'none', ha='center', va='center', color='0.5', fontsize=8)
            else:
                ax.imshow(as_map(maps[block]), cmap='magma', vmin=0, vmax=1, aspect='auto',
                          interpolation='nearest')
            if row == 0:
                ax.set_title(f'block {block + 1}', fontsize=8)
        axes[row, 0].set_ylabel(name, fontsize=8)


def draw_shares(ax: plt.Axes, steps: Sequence[Step], blocks: Sequence[int]) -> None:
    """The share of each block's first convolution that reads h, as bars."""
    bars = [100 * (steps[block].share or 0) for block in blocks]
    even = [100 * (steps[block].even_share or 0) for block in blocks]
    places = np.arange(len(blocks))
    ax.bar(places, bars, width=0.5, color='tab:blue', label='share of the weights that read h')
    ax.plot(places, even, '_', color='black', markersize=18,
            label='if all channels were read alike')
    ax.set(xlim=(-0.5, len(blocks) - 0.5), xticks=places, ylabel='% ($L_1$ norm)')
    ax.set_xticklabels([block + 1 for block in blocks], fontsize=8)
    ax.tick_params(axis='y', labelsize=8)
    ax.yaxis.label.set_fontsize(8)
    ax.legend(frameon=False, fontsize=8, loc='upper right')
    ax.set_ylim(top=1.45 * max(*bars, *even, 1))
    ax.spines[['top', 'right']].set_visible(False)


def draw(image: np.ndarray, plain: List[Step], steps: List[Step], without: str,
         path: Path) -> None:
    """The whole picture."""
    blocks = chosen(len(steps))
    ratio = image.shape[0] / image.shape[1]
    figure = plt.figure(figsize=(1.05 * len(blocks) + 2.3, 3.15 * ratio + 2), layout='constrained')
    grid = figure.add_gridspec(4, len(blocks) + 1, width_ratios=(2, *[1] * len(blocks)),
                               height_ratios=(ratio, ratio, ratio, 1.4))
    ax = figure.add_subplot(grid[:3, 0])
    ax.imshow(image)
    ax.set(xticks=[], yticks=[])
    ax.set_title('the image', fontsize=8)
    axes = np.array([[figure.add_subplot(grid[row, column + 1]) for column in range(len(blocks))]
                     for row in range(3)])
    draw_maps(([step.out for step in plain], [step.out for step in steps],
               [step.hidden for step in steps]), axes, blocks,
              (without, 'with RLA', 'hidden state'))
    draw_shares(figure.add_subplot(grid[3, 1:]), steps, blocks)
    write_file(path, lambda target: figure.savefig(
        target, dpi=90, format='png', pil_kwargs=dict(optimize=True)))
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw what RLA does inside a network.')
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('image')
    parser.add_argument('output', type=Path, help='the picture, a .png')
    parser.add_argument('--plain', nargs=2, metavar=('CONFIG', 'CHECKPOINT'),
                        help='a network without RLA to compare with')
    parser.add_argument('--size', type=int, help='the shorter side that the image is scaled to')
    args = parser.parse_args()
    silence()
    image, inputs = read_image(args.image, args.config, args.size)
    backbone = read_backbone(args.config, args.checkpoint)
    steps = run_along_depth(backbone, inputs)
    if all(step.hidden is None for step in steps):
        raise SystemExit(f'{args.config} has no hidden state: give a config with rla=dict(...)')
    if args.plain:
        plain = run_along_depth(read_backbone(*args.plain),
                                read_image(args.image, args.plain[0], args.size)[1])
        if len(plain) != len(steps):
            raise SystemExit(f'--plain {args.plain[0]} has {len(plain)} blocks, '
                             f'{args.config} has {len(steps)}')
        without = 'without RLA'
    else:
        with hidden_state_unread(backbone):
            plain = run_along_depth(backbone, inputs)
        without = 'h not read'
    draw(image, plain, steps, without, args.output)
    print(f'drawn to {args.output}')


if __name__ == '__main__':
    main()
