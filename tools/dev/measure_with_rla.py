"""Measure what WithRLA adds to the backbones of FAMILIES, as the table of the docs.

    python tools/dev/measure_with_rla.py                  # all, a Markdown table
    python tools/dev/measure_with_rla.py ResNeSt CSPNeXt --rounds 9

Times are those of one image of 224 x 224 in inference, and of a training step of two. The
plain network and the one with a hidden path run alternately. The ratio is that of the fastest
round of each, which other work on the machine disturbs least.
"""
import argparse
import copy
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from mmengine.registry import MODELS
from torch import nn

from mmrla.commands.logs import silence_logs

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


def infer(network: nn.Module) -> None:
    network.eval()
    with torch.no_grad():
        network(torch.zeros(1, 3, 224, 224))


def train(network: nn.Module) -> None:
    network.train()
    network.zero_grad()
    outs = network(torch.zeros(2, 3, 224, 224))
    sum(out.mean() for out in outs).backward()


def ratio(function: Callable, networks: Tuple[nn.Module, nn.Module], rounds: int) -> float:
    """The ratio of the second network's time to the first's."""
    seconds = {network: [] for network in networks}
    for i in range(rounds + 1):
        for network in networks if i % 2 else reversed(networks):
            start = time.process_time()
            function(network)
            seconds[network].append(time.process_time() - start)
    plain, added = (min(seconds[network][1:]) for network in networks)
    return added / plain


def measure(name: str, rounds: int) -> List[str]:
    """A row of the table."""
    torch.manual_seed(0)
    networks = plain, added = pair_of(FAMILIES[name])
    counts = [sum(p.numel() for p in network.parameters()) for network in networks]
    return [name, str(len(added._steps)), str(len(added.rla)), f'{counts[0] / 1e6:.2f} M',
            f'{(counts[1] - counts[0]) / 1e6:.2f} M ({counts[1] / counts[0] - 1:.1%})',
            f'{ratio(infer, networks, rounds):.2f}', f'{ratio(train, networks, rounds):.2f}']


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Measure what WithRLA adds to backbones.')
    parser.add_argument('names', nargs='*', default=list(FAMILIES), metavar='NAME',
                        help=f'any of: {", ".join(FAMILIES)}')
    parser.add_argument('--rounds', type=int, default=7, help='number of interleaved rounds')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    parser = build_parser()
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in FAMILIES]
    if unknown:
        parser.error(f'{unknown[0]!r} is not known; choose among: {", ".join(FAMILIES)}')
    silence_logs()
    header = ['backbone', 'blocks', 'stages', 'parameters', 'added', 'inference', 'training step']
    for row in (header, ['---'] * len(header)):
        print(f'| {" | ".join(row)} |')
    for name in args.names:
        print(f'| {" | ".join(measure(name, args.rounds))} |', flush=True)


if __name__ == '__main__':
    main()
