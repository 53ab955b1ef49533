r"""Draw the feature maps and the hidden state of a network for one image.

    python tools/look_inside.py CONFIG CHECKPOINT IMAGE inside.png
    python tools/look_inside.py CONFIG CHECKPOINT IMAGE inside.png \
        --plain PLAIN_CONFIG PLAIN_CHECKPOINT

Each column is a block, from the input to the output. The rows show the feature maps
without RLA, the feature maps with RLA, the hidden state, and the share of each
block's first convolution that reads the hidden state (L1 norm of its weights).
"Without RLA" is the network of --plain, or by default the same weights with blocks
that do not read the hidden state. A map shows the mean absolute value over the
channels, divided by its maximum.
"""
import argparse
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import cv2
import matplotlib
import numpy as np
import torch

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402
from torch import Tensor  # noqa: E402

from mmrla.paper.figures import Step, hidden_state_unread, run_along_depth  # noqa: E402
from mmrla.weights.writing import write_file  # noqa: E402

from .backbones import read_backbone  # noqa: E402
from .configs import read_config  # noqa: E402
from .logs import silence_logs  # noqa: E402

MAX_COLUMNS = 16


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Draw the feature maps and the hidden state of a network.')
    parser.add_argument('config', help='config of the network')
    parser.add_argument('checkpoint', help='weights of the network')
    parser.add_argument('image', help='image to run the network on')
    parser.add_argument('output', type=Path, help='.png file to write')
    parser.add_argument('--plain', nargs=2, metavar=('CONFIG', 'CHECKPOINT'),
                        help='a network without RLA to compare with')
    parser.add_argument('--size', type=int, help='scale the shorter side of the image to this')
    return parser


def read_image(path: str, config: str, size: Optional[int]) -> Tuple[np.ndarray, Tensor]:
    """Read an image, and normalize it for the network of a config.

    Args:
        path: Path of the image.
        config: Config whose data preprocessor has the mean and standard deviation.
        size: Length of the shorter side, or None to keep the size.

    Returns:
        tuple: The RGB image, (H, W, 3), and the input, (1, 3, H, W).
    """
    image = cv2.imread(path)
    if image is None:
        raise SystemExit(f'image {path} does not exist or cannot be decoded')
    if size:
        factor = size / min(image.shape[:2])
        image = cv2.resize(image, None, fx=factor, fy=factor)
    cfg = read_config(config)
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    mean, std = (np.array(preprocessor.get(name) or [default] * 3, dtype=np.float32)
                 for name, default in (('mean', 0), ('std', 1)))
    rgb = image[..., ::-1]
    to_rgb = preprocessor.get('to_rgb') or preprocessor.get('bgr_to_rgb')
    normal = ((rgb if to_rgb else image) - mean) / std
    return rgb, torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))[None]


def as_map(features: Tensor) -> np.ndarray:
    """Reduce features (1, C, H, W) to their mean absolute value (H, W), scaled to 1."""
    values = features[0].abs().mean(0)
    return (values / values.max().clamp(min=1e-12)).cpu().numpy()


def chosen(count: int) -> List[int]:
    """Return the indices of at most 16 blocks, evenly spaced."""
    return sorted(set(np.linspace(0, count - 1, min(count, MAX_COLUMNS)).round().astype(int)))


def draw_maps(rows: Sequence, axes: np.ndarray, blocks: Sequence[int],
              names: Sequence[str]) -> None:
    """Draw one row of maps per kind; a missing map stays empty."""
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
    """Draw the share of each block's first convolution that reads h, as bars."""
    bars = [100 * (steps[block].share or 0) for block in blocks]
    even = [100 * (steps[block].even_share or 0) for block in blocks]
    places = np.arange(len(blocks))
    ax.bar(places, bars, width=0.5, color='tab:blue', label='share of the weights that read h')
    ax.plot(places, even, '_', color='black', markersize=18,
            label='share if all channels had equal weights')
    ax.set(xlim=(-0.5, len(blocks) - 0.5), xticks=places, ylabel='% ($L_1$ norm)')
    ax.set_xticklabels([block + 1 for block in blocks], fontsize=8)
    ax.tick_params(axis='y', labelsize=8)
    ax.yaxis.label.set_fontsize(8)
    ax.legend(frameon=False, fontsize=8, loc='upper right')
    ax.set_ylim(top=1.45 * max(*bars, *even, 1))
    ax.spines[['top', 'right']].set_visible(False)


def draw(image: np.ndarray, plain: List[Step], steps: List[Step], without: str,
         path: Path) -> None:
    """Draw the picture.

    Args:
        image: RGB, (H, W, 3).
        plain: Steps of the network without RLA.
        steps: Steps of the network with RLA.
        without: Label of the row of ``plain``.
        path: File to write.
    """
    blocks = chosen(len(steps))
    ratio = image.shape[0] / image.shape[1]
    figure = plt.figure(figsize=(1.05 * len(blocks) + 2.3, 3.15 * ratio + 2), layout='constrained')
    grid = figure.add_gridspec(4, len(blocks) + 1, width_ratios=(2, *[1] * len(blocks)),
                               height_ratios=(ratio, ratio, ratio, 1.4))
    ax = figure.add_subplot(grid[:3, 0])
    ax.imshow(image)
    ax.set(xticks=[], yticks=[])
    ax.set_title('image', fontsize=8)
    axes = np.array([[figure.add_subplot(grid[row, column + 1]) for column in range(len(blocks))]
                     for row in range(3)])
    draw_maps(([step.out for step in plain], [step.out for step in steps],
               [step.hidden for step in steps]), axes, blocks,
              (without, 'with RLA', 'hidden state'))
    draw_shares(figure.add_subplot(grid[3, 1:]), steps, blocks)
    write_file(path, lambda target: figure.savefig(
        target, dpi=90, format='png', pil_kwargs=dict(optimize=True)))
    plt.close(figure)


def run_plain(args: argparse.Namespace, blocks: int) -> List[Step]:
    """Run the network of --plain, which must have as many blocks."""
    config, checkpoint = args.plain
    steps = run_along_depth(read_backbone(config, checkpoint),
                            read_image(args.image, config, args.size)[1])
    if len(steps) != blocks:
        raise SystemExit(f'--plain {config} has {len(steps)} blocks, but {args.config} has '
                         f'{blocks}')
    return steps


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    silence_logs()
    image, inputs = read_image(args.image, args.config, args.size)
    backbone = read_backbone(args.config, args.checkpoint)
    steps = run_along_depth(backbone, inputs)
    if all(step.hidden is None for step in steps):
        raise SystemExit(f'{args.config} has no hidden state; give a config with rla=dict(...)')
    if args.plain:
        plain, without = run_plain(args, len(steps)), 'without RLA'
    else:
        with hidden_state_unread(backbone):
            plain, without = run_along_depth(backbone, inputs), 'h not read'
    draw(image, plain, steps, without, args.output)
    print(f'wrote {args.output}')


if __name__ == '__main__':
    main()
