"""Break each equation of the paper on purpose and check that its tests fail.

    python tools/dev/break_equations.py            # all breaks
    python tools/dev/break_equations.py lag pool   # breaks whose name contains a word

Each break replaces one piece of source in a copy of the repository and runs the
named tests there. The exit code is 1 if the tests pass with a break, or if the source
has changed so that a break no longer applies.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

REPO = Path(__file__).resolve().parents[2]
THEORY = 'tests/paper/test_theory.py'
RECIPES = 'tests/configs/test_recipes.py'


class Break(NamedTuple):
    """A piece of source, its replacement, and the tests that must fail."""
    name: str
    path: str
    old: str
    new: str
    tests: str
    words: str


RLA = 'mmrla/models/rla.py'
DENSE = 'mmrla/models/backbones/densenet.py'
CIFAR = 'mmrla/models/backbones/cifar_resnet.py'
BREAKS = [
    Break('eq 1: blocks do not read h', RLA, 'if self.config.exchange:', 'if False:',
          THEORY, 'eq_1_x_t_depends'),
    Break('eq 1: exchange=False still reads h', RLA,
          'self.readers = ModuleList(readers if config.exchange else [])',
          'self.readers = ModuleList(readers); self.config = config = '
          'type(config)(**{**config.__dict__, "exchange": True})', THEORY,
          'eq_1_without_the_hidden_path'),
    Break('eq 1, 3: a dense layer reads the newest layer alone', DENSE,
          'x = torch.cat([x, conv3(conv1(x))], 1)',
          'x = torch.cat([x, conv3(conv1(torch.cat([x[:, :-12] * 0, x[:, -12:]], 1)))], 1)',
          THEORY, 'eq_1_densenet or eq_2_and_3'),
    Break('eq 2: a residual block forgets its shortcut', CIFAR,
          'return BlockFeatures(y, shortcut, y + shortcut)',
          'return BlockFeatures(y, shortcut, y + 0.5 * shortcut)', THEORY,
          'eq_2_a_pre_activated'),
    Break('eq 3: Conv3 sees twice what is aggregated', DENSE, 'conv3(conv1(x))], 1)',
          'conv3(2 * conv1(x))], 1)', THEORY, 'eq_2_and_3'),
    Break('eq 5: 3k heads', DENSE, 'NormReLUConv(c, 4 * growth, 1, norm_cfg)',
          'NormReLUConv(c, 3 * growth, 1, norm_cfg)', THEORY, 'eq_5'),
    Break('eq 8: h is halved', RLA, 'return (self.unit(t, new.add_(h)),)',
          'return (self.unit(t, new.add_(h / 2)),)', THEORY, 'eq_8'),
    Break('eq 7: h enters with the wrong sign', RLA, 'return (self.unit(t, new.add_(h)),)',
          'return (self.unit(t, new.sub_(h)),)', THEORY, 'eq_7'),
    Break('eq 9: the lag starts at the oldest layer', DENSE,
          'activated[::-1] if self.by_lag else activated', 'activated', THEORY,
          'eq_9_and_10_a_term'),
    Break('eq 10: ordinal sharing by lag', DENSE,
          'activated[::-1] if self.by_lag else activated', 'activated[::-1]', THEORY,
          'eq_9_and_10_a_term'),
    Break('eq 9, 10: x^0 shares its convolution', DENSE,
          'self.conv1 = ModuleList([NormReLUConv(c, 4 * growth, 1, norm_cfg) for c in own])',
          'self.conv1 = ModuleList([NormReLUConv(c, 4 * growth, 1, norm_cfg) for c in own])\n'
          '        if sharing:\n            self.conv1 = ModuleList([self.conv1[0]] * num_layers)',
          THEORY, 'eq_9_and_10_the_convolution'),
    Break('section 3.2: the shared form saves less', DENSE,
          'self.conv = nn.Conv2d(count * growth, 4 * growth, 1, bias=False)',
          'self.conv = nn.Conv2d(3 * count * growth, 4 * growth, 1, bias=False)', THEORY,
          'sharing_takes_a_quarter'),
    Break('eq 11: v2 adds before g2', RLA, "'v2': Variant('residual', False)",
          "'v2': Variant('residual', True)", THEORY, 'eq_11'),
    Break('eq 11: v1 compresses the sum', RLA, "'v1': Variant('residual', True)",
          "'v1': Variant('out', True)", THEORY, 'eq_11'),
    Break('eq 11: h^0 is one', RLA, 'x.new_zeros(())', 'x.new_ones(())', THEORY, 'eq_11 or eq_12'),
    Break('eq 12: g2 passes h around', RLA, 'return (self.unit(t, new.add_(h)),)',
          'return (self.unit(t, new) + h,)', THEORY, 'eq_12'),
    Break('eq 12: the magnitude of h is pooled', RLA, 'return F.avg_pool2d(\n            h,',
          'return F.avg_pool2d(\n            h.abs(),', THEORY, 'eq_12'),
    Break('A.3: the start is dropped', RLA, 'if state is None:', 'if True:', THEORY,
          'a3_the_start'),
    Break('A.3: g2 has a constant', RLA,
          'return convolution(owned(norm, norm(h)).tanh_())',
          'return convolution(owned(norm, norm(h)).tanh_()) + 1', THEORY, 'a3_g1 or eq_12'),
    # These equations have no code of their own here: the test's own network is broken.
    Break('A.1: a sequential CNN has a shortcut from x^0', THEORY,
          'return layers[-1](x if fixed is None else fixed), x',
          'return layers[-1](x if fixed is None else fixed + x), x', THEORY, 'a1_a_sequential'),
    Break('A.1: an aggregation node multiplies its inputs', THEORY,
          'return F.relu(norm(conv(torch.cat(inputs, 1))))',
          'return F.relu(norm(conv(torch.cat(inputs, 1).square())))', THEORY, 'a1_hierarchical'),
    Break('eq 4: the kernels are no partition', THEORY,
          'parts = conv.weight.split(k, 1)\n    terms',
          'parts = conv.weight.roll(1, 1).split(k, 1)\n    terms', THEORY, 'eq_4'),
    Break('A.2: the AR form has the wrong sign of gamma', THEORY,
          'recovered = x[-1] - sum((beta - gamma) * gamma**(lag - 1)',
          'recovered = x[-1] - sum((beta - gamma) * (-gamma)**(lag - 1)', THEORY, 'a2_only'),
    Break('recipe: ImageNet drops after 40', 'configs/_base_/pretrain/schedule_120e.py',
          'milestones=[30, 60, 90]', 'milestones=[40, 60, 90]', RECIPES, 'rla_r50_imagenet'),
    Break('recipe: no Nesterov on CIFAR', 'configs/_base_/pretrain/schedule_cifar_300e.py',
          'nesterov=True', 'nesterov=False', RECIPES, 'rla_r164_cifar10'),
    Break('recipe: MobileNetV2 decays by 0.99',
          'configs/_base_/pretrain/schedule_mobilenet_400e.py', 'gamma=0.98',
          'gamma=0.99', RECIPES, 'rla_mbv2_imagenet'),
    Break('recipe: no warm-up', 'configs/_base_/pretrain/schedule_refined_200e.py',
          'begin=0, end=5', 'begin=0, end=1', RECIPES, 'rla_r50d_imagenet'),
    Break('recipe: mixup 0.4', 'configs/_base_/pretrain/refined_classifier.py', 'alpha=0.2',
          'alpha=0.4', RECIPES, 'rla_r50d_imagenet'),
    Break('recipe: detectors start at 0.02', 'configs/_base_/schedule_1x.py', 'lr=0.01', 'lr=0.02',
          RECIPES, 'faster_rcnn_rla_r50_fpn_1x'),
    Break('recipe: validation images are trained on', 'configs/_base_/pretrain/cifar10.py',
          'indices=45000', 'indices=50000', RECIPES, 'cifar_is_split'),
    Break('recipe: a centre crop of 256', 'configs/_base_/pretrain/imagenet.py',
          "type='CenterCrop', crop_size=224", "type='CenterCrop', crop_size=256", RECIPES,
          'imagenet_is_cropped or rla_r50_imagenet'),
]


def is_noticed(copy: Path, broken: Break) -> bool:
    """Return whether the tests fail with a break."""
    path = copy / broken.path
    source = path.read_text()
    if source.count(broken.old) < 1:
        raise SystemExit(f'{broken.name}: {broken.path} no longer has {broken.old!r}')
    path.write_text(source.replace(broken.old, broken.new, 1))
    try:
        return run_tests(copy, broken) == 1  # pytest's code for failed tests
    finally:
        path.write_text(source)


def run_tests(copy: Path, broken: Break) -> int:
    """Return the exit code of pytest."""
    command = [sys.executable, '-m', 'pytest', broken.tests, '-q', '-x', '-k', broken.words,
               '-p', 'no:cacheprovider']
    return subprocess.run(command, cwd=copy, env=dict(os.environ, PYTHONPATH=str(copy)),
                          capture_output=True).returncode


def chosen(words: List[str]) -> List[Break]:
    """Return the breaks whose name contains one of the words; all without words."""
    return [broken for broken in BREAKS
            if not words or any(word in broken.name for word in words)]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Break each equation of the paper on purpose and check that its tests fail.')
    parser.add_argument('words', nargs='*', metavar='WORD',
                        help='only breaks whose name contains one of the words; default: all')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / 'repository'
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(
            '.git', '.venv', 'data', 'work_dirs', '__pycache__', '*_cache'))
        for broken in chosen(args.words):
            noticed = is_noticed(copy, broken)
            print(f'{"noticed  " if noticed else "UNNOTICED"}  {broken.name}', flush=True)
            if not noticed:
                unnoticed.append(broken.name)
    sys.exit(bool(unnoticed))


if __name__ == '__main__':
    main()
