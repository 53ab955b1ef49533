"""Measure what WithRLA adds to the backbones of FAMILIES, as the tables of the docs.

    python tools/dev/measure_with_rla.py                  # all, a Markdown table
    python tools/dev/measure_with_rla.py ResNeSt-50 CSPNeXt-s --rounds 9
    python tools/dev/measure_with_rla.py --wrapper        # WithRLA against RLAResNet

Two networks run alternately on one thread, one round after another. A figure is the median
over the rounds of the ratio of their CPU times, and with ``--wrapper`` also the quartiles.
Other work on the machine disturbs both networks of a round.
"""
import argparse
import copy
import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.commands.logs import silence_logs
from mmrla.models import RLAResNet
from mmrla.models.lean.conditions import plain_path

SIZE = (224, 224)
# For the wrapper's own cost: a training step and an inference of one image each.
WRAPPER_SIZES = ((320, 320), (480, 640))
TIMM = 'mmpretrain.TIMMBackbone'
FAMILIES: Dict[str, Dict[str, Any]] = {
    'ResNet-18': dict(type='mmdet.ResNet', depth=18),
    'ResNet-50': dict(type='mmdet.ResNet', depth=50),
    'ResNeXt-50 32x4d': dict(type='mmdet.ResNeXt', depth=50, groups=32, base_width=4),
    'RegNetX-3.2GF': dict(type='mmdet.RegNet', arch='regnetx_3.2gf'),
    'Res2Net-50': dict(type='mmdet.Res2Net', depth=50, scales=4, base_width=26),
    'ResNeSt-50': dict(type='mmdet.ResNeSt', depth=50),
    'DetectoRS ResNet-50': dict(
        type='mmdet.DetectoRS_ResNet', depth=50, output_img=False,
        sac=dict(type='SAC', use_deform=False), stage_with_sac=(False, True, True, True)),
    'Darknet-53': dict(type='mmdet.Darknet', depth=53),
    'CSPDarknet': dict(type='mmdet.CSPDarknet', deepen_factor=0.33, widen_factor=0.5),
    'CSPNeXt-s': dict(type='mmdet.CSPNeXt', deepen_factor=0.33, widen_factor=0.5),
    'MobileNetV2': dict(type='mmdet.MobileNetV2'),
    'HRNet-W18': dict(type='mmdet.HRNet', extra=dict(
        stage1=dict(num_modules=1, num_branches=1, block='BOTTLENECK', num_blocks=(4,),
                    num_channels=(64,)),
        stage2=dict(num_modules=1, num_branches=2, block='BASIC', num_blocks=(4, 4),
                    num_channels=(18, 36)),
        stage3=dict(num_modules=4, num_branches=3, block='BASIC', num_blocks=(4, 4, 4),
                    num_channels=(18, 36, 72)),
        stage4=dict(num_modules=3, num_branches=4, block='BASIC', num_blocks=(4, 4, 4, 4),
                    num_channels=(18, 36, 72, 144)))),
    'SE-ResNet-50': dict(type='mmpretrain.SEResNet', depth=50),
    'MobileNetV3-L': dict(type='mmpretrain.MobileNetV3', arch='large'),
    'EfficientNet-B0': dict(type='mmpretrain.EfficientNet', arch='b0'),
    'EfficientNetV2-S': dict(type='mmpretrain.EfficientNetV2', arch='s'),
    'ConvNeXt-T': dict(type='mmpretrain.ConvNeXt', arch='tiny', out_indices=(0, 1, 2, 3),
                       gap_before_final_norm=False),
    'CSPResNet-50': dict(type='mmpretrain.CSPResNet', depth=50),
    'ConvMixer-768/32': dict(type='mmpretrain.ConvMixer', arch='768/32'),
    'timm ResNet-RS-50': dict(type=TIMM, model_name='resnetrs50', features_only=True),
    'timm ResNetV2-50, pre-activated': dict(
        type=TIMM, model_name='resnetv2_50', features_only=True),
    'timm ECA-NFNet-L0': dict(type=TIMM, model_name='eca_nfnet_l0', features_only=True),
    'timm RegNetY-400MF': dict(type=TIMM, model_name='regnety_004', features_only=True),
    'timm Xception-41': dict(type=TIMM, model_name='xception41', features_only=True),
    'timm TResNet-M': dict(type=TIMM, model_name='tresnet_m', features_only=True),
}


def pair_of(cfg: Dict[str, Any]) -> Tuple[nn.Module, nn.Module]:
    """A plain network, and the same with a hidden path."""
    plain = MODELS.build(copy.deepcopy(cfg))
    return plain, MODELS.build(dict(type='WithRLA', backbone=copy.deepcopy(plain)))


def wrapper_pair() -> Tuple[nn.Module, nn.Module]:
    """ResNet-50 with a hidden path, by RLAResNet and by WithRLA, with the same weights."""
    settings = dict(depth=50, norm_eval=False)
    special = RLAResNet(rla=dict(channels=32, variant='v1'), **settings)
    wrapped = MODELS.build(dict(type='WithRLA', backbone=dict(type='mmdet.ResNet', **settings)))
    wrapped.load_state_dict(special.state_dict(), strict=True)
    return special, wrapped


def infer(network: nn.Module, images: Tensor) -> None:
    network.eval()
    with torch.no_grad():
        network(images)


def train(network: nn.Module, images: Tensor) -> None:
    network.train()
    network.zero_grad()
    sum(out.mean() for out in network(images)).backward()


def ratios(function: Callable, networks: Tuple[nn.Module, nn.Module], images: Tensor,
           rounds: int) -> List[float]:
    """The ratio of the second network's CPU time to the first's, of each round.

    Args:
        function: Takes a network and images.
        networks: The two networks.
        images: Shape (N, 3, H, W).
        rounds: Their number. One more, at the start, is not counted.
    """
    found = []
    for i in range(rounds + 1):
        seconds = {}
        for network in networks if i % 2 else reversed(networks):
            start = time.process_time()
            function(network, images)
            seconds[network] = time.process_time() - start
        found.append(seconds[networks[1]] / seconds[networks[0]])
    return found[1:]


def measure(name: str, rounds: int) -> List[str]:
    """A row of the table of backbones."""
    torch.manual_seed(0)
    networks = plain, added = pair_of(FAMILIES[name])
    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    times = [statistics.median(ratios(function, networks, torch.randn(count, 3, *SIZE), rounds))
             for function, count in ((infer, 1), (train, 2))]
    return [name, str(len(added._steps)), str(len(added.rla)), f'{counts[0] / 1e6:.2f} M',
            f'{(counts[1] - counts[0]) / 1e6:.2f} M ({counts[1] / counts[0] - 1:.1%})',
            *(f'{value:.2f}' for value in times)]


def measure_wrapper(size: Tuple[int, int], rounds: int) -> List[str]:
    """A row of the table of the wrapper's own cost."""
    torch.manual_seed(0)
    networks, images = wrapper_pair(), torch.randn(1, 3, *size)
    row = ['{} x {}'.format(*size)]
    for function in (infer, train):
        with plain_path():
            found = ratios(function, networks, images, rounds)
        low, median, high = statistics.quantiles(found, n=4, method='inclusive')
        row.append(f'{median:.3f} ({low:.3f} to {high:.3f})')
    return row


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Measure what WithRLA adds to backbones.')
    parser.add_argument('names', nargs='*', default=list(FAMILIES), metavar='NAME',
                        help=f'any of: {", ".join(FAMILIES)}')
    parser.add_argument('--rounds', type=int, default=9, help='number of interleaved rounds')
    parser.add_argument('--wrapper', action='store_true',
                        help='measure the cost of the wrapper itself, not of the hidden path')
    return parser


def print_row(cells: Sequence[str]) -> None:
    """Print a row of a Markdown table."""
    print(f'| {" | ".join(cells)} |', flush=True)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = build_parser()
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in FAMILIES]
    if unknown:
        parser.error(f'{unknown[0]!r} is not known; choose among: {", ".join(FAMILIES)}')
    silence_logs()
    torch.set_num_threads(1)
    header = ['image', 'inference', 'training step'] if args.wrapper else [
        'backbone', 'blocks', 'stages', 'parameters', 'added', 'inference', 'training step']
    print_row(header)
    print_row(['---'] * len(header))
    if args.wrapper:
        for size in WRAPPER_SIZES:
            print_row(measure_wrapper(size, args.rounds))
        return
    for name in args.names:
        print_row(measure(name, args.rounds))


if __name__ == '__main__':
    main()
