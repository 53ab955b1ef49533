r"""Train classifiers for some hundred steps and record the loss and the gradients.

    python tools/dev/check_stability.py data/cifar10_folders/train \
        configs/pretrain/rla_{mbv2,r50,r101,r152}_imagenet.py --output docs/evidence/stability

The model, its initial values, the optimizer and the initial learning rate are those of
the config. With --scale-lr the learning rate is scaled to the batch, as auto_scale_lr does
in training. Only the images, their size and the batch differ from the config.

The command writes OUTPUT.json (loss and gradient norms of the parts of the network, by
step) and OUTPUT.png. A config that OUTPUT.json already contains is not trained again. The
exit code is 1 if a loss does not fall, or if a loss or a gradient norm has a spike.
"""
import argparse
import json
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.dataset import default_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import set_random_seed
from torch.utils.data import DataLoader

import mmrla  # noqa: F401  (registers the modules)
from mmrla.weights.writing import write_file

# The gradient has a spike if its norm is this multiple of the median of the WINDOW steps before.
SPIKE = 10
WINDOW = 20
# The loss has a spike if it is this multiple of the loss of the first step.
LOSS_SPIKE = 1.5


def part_of(name: str) -> str:
    """Return the part of the network that a parameter belongs to."""
    words = name.split('.')
    if words[0] != 'backbone':
        return 'neck and head'
    if words[1] == 'rla':
        return f'hidden path: {words[3]}'
    if words[1].startswith('conv2_reader'):
        return 'hidden path: readers'
    return words[1] if words[1].startswith('layer') else 'stem and last convolution'


def batches(cfg: Config, folder: Path, size: int, batch: int) -> Iterator[dict]:
    """Yield batches of class folders with the pipeline of the config, without an end."""
    pipeline = [dict(step) for step in cfg.train_dataloader.dataset.pipeline]
    for step in pipeline:
        if step['type'] == 'RandomResizedCrop':
            step['scale'] = size
    dataset = DATASETS.build(dict(type='ClassFolders', data_root=str(folder), pipeline=pipeline))
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, collate_fn=default_collate)
    while True:
        yield from loader


def norms_of(model: torch.nn.Module) -> Dict[str, float]:
    """Return the norm of the gradient of each part, and of all parts."""
    squares: Dict[str, float] = defaultdict(float)
    for name, parameter in model.named_parameters():
        squares[part_of(name)] += float(parameter.grad.square().sum())
    squares['all'] = sum(squares.values())
    return {part: value**0.5 for part, value in squares.items()}


def train(path: Path, args: argparse.Namespace) -> Dict[str, Any]:
    """Train, and return the loss and the gradient norms of each step."""
    from mmpretrain.utils import register_all_modules
    register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    set_random_seed(args.seed)
    cfg.model.data_preprocessor = dict(type='ClsDataPreprocessor', **cfg.data_preprocessor)
    model = MODELS.build(cfg.model)
    model.init_weights()
    model.train()
    if args.scale_lr:
        cfg.optim_wrapper.optimizer.lr *= args.batch / cfg.auto_scale_lr.base_batch_size
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    losses, norms, start = [], defaultdict(list), time.monotonic()
    data = batches(cfg, args.images, args.size, args.batch)
    for step in range(args.steps):
        batch = model.data_preprocessor(next(data), training=True)
        loss, _ = model.parse_losses(model(**batch, mode='loss'))
        wrapper.zero_grad()
        loss.backward()
        losses.append(float(loss))
        for part, value in norms_of(model).items():
            norms[part].append(round(value, 6))
        if not math.isfinite(losses[-1]):
            break
        wrapper.step()
        if step % 20 == 0:
            print(f'{path.stem} step {step}: loss {losses[-1]:.3f}, gradient '
                  f'{norms["all"][-1]:.3f}', flush=True)
    return dict(config=path.stem, lr=cfg.optim_wrapper.optimizer.lr, loss=losses, norms=dict(norms),
                seconds=time.monotonic() - start)


def largest_spike(norms: List[float]) -> float:
    """Return the largest norm, relative to the median of the WINDOW steps before it."""
    medians = [median(norms[i - WINDOW:i]) for i in range(WINDOW, len(norms))]
    return max((value / before for value, before in zip(norms[WINDOW:], medians, strict=True)
                if before > 0), default=0.0)


def verdict(run: Dict[str, Any]) -> Dict[str, Any]:
    """Return the losses at the start and at the end, and the largest spikes."""
    norms, loss = run['norms'], run['loss']
    return dict(first=mean(loss[:WINDOW]), last=mean(loss[-WINDOW:]),
                largest_spike=largest_spike(norms['all']),
                largest_part_spike=max(map(largest_spike, norms.values())),
                largest_loss=max(loss) / loss[0], finite=all(map(math.isfinite, loss)))


def is_stable(found: Dict[str, Any]) -> bool:
    """Return whether a verdict has a falling loss and no spike in the whole gradient."""
    return (found['finite'] and found['last'] < found['first']
            and found['largest_spike'] < SPIKE and found['largest_loss'] < LOSS_SPIKE)


def draw(runs: List[Dict[str, Any]], path: Path) -> None:
    """Draw a column for each config: the loss above, the gradient norms below."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(2, len(runs), figsize=(4 * len(runs), 7), layout='constrained',
                                squeeze=False, sharex=True, sharey='row')
    for (above, below), run in zip(axes.T, runs, strict=True):
        above.plot(run['loss'], color='tab:red', linewidth=0.8)
        above.set(title=f'{run["config"]}, lr {run["lr"]:g}', ylabel='loss')
        for part, values in run['norms'].items():
            style = dict(color='black', linewidth=1.6) if part == 'all' else dict(linewidth=0.7)
            below.plot(values, '--' if part.startswith('hidden') else '-', label=part, **style)
        below.set(yscale='log', xlabel='step', ylabel='norm of the gradient')
        below.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16), fontsize='x-small', ncols=2)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Record the first steps of a training.')
    parser.add_argument('images', type=Path, help='folder with one subfolder per class')
    parser.add_argument('configs', nargs='+', type=Path, metavar='CONFIG',
                        help='paths of the configs')
    parser.add_argument('--output', type=Path, required=True,
                        help='path of the two output files, without a suffix')
    parser.add_argument('--size', type=int, default=64, help='side of a crop')
    parser.add_argument('--batch', type=int, default=16, help='images per step')
    parser.add_argument('--steps', type=int, default=200, help='training steps')
    parser.add_argument('--seed', type=int, default=0, help='seed of the training')
    parser.add_argument('--scale-lr', action='store_true',
                        help='scale the learning rate to the batch')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.steps <= 2 * WINDOW:
        parser.error(f'--steps {args.steps} must be at least {2 * WINDOW + 1}')
    file = args.output.with_name(f'{args.output.name}.json')
    runs = json.loads(file.read_text())['runs'] if file.exists() else []
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for path in args.configs:
        if path.stem not in [run['config'] for run in runs]:
            runs.append(train(path, args))
            settings = dict(size=args.size, batch=args.batch, steps=args.steps, seed=args.seed,
                            scale_lr=args.scale_lr)
            text = json.dumps(dict(settings=settings, runs=runs)) + '\n'
            write_file(file, lambda f, text=text: f.write(text.encode()))
    draw(runs, args.output.with_name(f'{args.output.name}.png'))
    for run in runs:
        found = verdict(run)
        print(f'{run["config"]}: lr {run["lr"]}, loss {found["first"]:.3f} to {found["last"]:.3f}, '
              f'largest loss {found["largest_loss"]:.1f} times the first, largest gradient '
              f'{found["largest_spike"]:.1f} times the median, that of a part '
              f'{found["largest_part_spike"]:.1f} times'
              + ('' if is_stable(found) else '  UNSTABLE'))
    sys.exit(not all(is_stable(verdict(run)) for run in runs))


if __name__ == '__main__':
    main()
