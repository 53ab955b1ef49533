r"""Draw figure 2 of the paper for a checkpoint: the norms of shared weights.

    python tools/plot_shared_weights.py \
        configs/ablation/densenet100_shared_lag_cifar_folders.py \
        work_dirs/shared_lag/epoch_1.pth lag.png

Draws the L1 norms of the shared 1x1 convolutions of a DenseNet, by lag or by ordinal
number, with an exponential fit for each dense block. Prints the norms, the fits and
their R squared.
"""
import argparse
from pathlib import Path
from typing import List, Optional, Sequence

import matplotlib
import numpy as np

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

from mmrla.paper.figures import ExponentialFit, fit_exponential, shared_weight_norms  # noqa: E402
from mmrla.paper.tables import FIGURE_2_R_SQUARED  # noqa: E402
from mmrla.weights.writing import write_file  # noqa: E402

from .backbones import read_backbone  # noqa: E402
from .logs import silence_logs  # noqa: E402

COLOURS = ('tab:blue', 'tab:orange', 'tab:green')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Plot the norms of the shared weights of a DenseNet.')
    parser.add_argument('config', help='config of a CifarDenseNet with sharing')
    parser.add_argument('checkpoint', help='weights of the network')
    parser.add_argument('output', type=Path, help='.png file to write')
    return parser


def draw(norms: List[np.ndarray], fits: List[ExponentialFit], sharing: str, path: Path) -> None:
    """Draw the norms as points and the fits as lines."""
    figure, axes = plt.subplots(figsize=(6, 3.6), layout='constrained')
    for i, (values, fit, colour) in enumerate(zip(norms, fits, COLOURS, strict=True)):
        x = np.arange(1, len(values) + 1)
        smooth = np.linspace(1, len(values), 200)
        axes.plot(x, values, 'o', color=colour, markersize=4)
        axes.plot(smooth, fit.at(smooth), color=colour, linewidth=1.2,
                  label=f'dense block {i + 1}: $R^2$ = {fit.r_squared:.2f}')
    axes.set(xlabel='lag t - l' if sharing == 'lag' else 'ordinal number l of the layer',
             ylabel='$L_1$ norm of the shared weights', title=f'Shared-{sharing.capitalize()}')
    axes.set_ylim(0, 1.1 * max(values.max() for values in norms))
    axes.set_xticks(range(1, len(norms[0]) + 1))
    axes.legend(frameon=False)
    axes.spines[['top', 'right']].set_visible(False)
    write_file(path, lambda target: figure.savefig(target, dpi=110, format='png'))
    plt.close(figure)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    silence_logs()
    backbone = read_backbone(args.config, args.checkpoint)
    norms = shared_weight_norms(backbone)
    sharing = 'lag' if backbone.blocks[0].shared.by_lag else 'ordinal'
    fits = [fit_exponential(values) for values in norms]
    for i, (values, fit) in enumerate(zip(norms, fits, strict=True)):
        print(f'dense block {i + 1}: {fit.scale:.1f} exp({-fit.rate:+.3f} {sharing}), '
              f'R squared {fit.r_squared:.2f} (paper, after 300 epochs: '
              f'{FIGURE_2_R_SQUARED[sharing][i]:.2f})')
        print('  L1 norms: ' + ' '.join(f'{value:.1f}' for value in values))
    draw(norms, fits, sharing, args.output)
    print(f'wrote {args.output}')


if __name__ == '__main__':
    main()
