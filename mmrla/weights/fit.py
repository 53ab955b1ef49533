"""Choose what a model takes from a file: check that it fits, and report every entry.

Nothing is changed here. :mod:`mmrla.weights.loading` loads what was chosen.
"""
import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from mmrla.models.backbones.base import RLABackbone
from mmrla.models.backbones.resnet import RLAResNet
from mmrla.models.rla import last_convolution

from .errors import CheckpointError
from .layouts import AUTHORS_RESNET, BACKBONE, Weights, as_dict

# The share of a backbone's entries that must come from the file. A plain network's file
# lacks deformable convolutions, plugins and attention; these are less than the rest.
MIN_SHARE = 0.7
WARM_START = 'set to zero: the outputs stay those of the plain network until training changes them'
NEUTRAL = ('set so that the attention changes nothing until training does: its last weights are '
           'zero, and the norm before it has the inverse factor')
WIDENED = 'widened by zeros for h'


class LoadReport(NamedTuple):
    """What happened to each entry of a file and of a model.

    Attributes:
        loaded: Entries that the model took from the file unchanged.
        adapted: By rule, entries that it took under another name or changed.
        initial: Entries of the model that keep their initial values.
        ignored: Entries of the file that the model did not take. If the name
            exists in the model, the reason follows it.
        new_parts: The parts of the backbone that the file does not contain:
            ``'rla'``, ``'attention'``.
    """
    loaded: List[str]
    adapted: Dict[str, List[str]]
    initial: List[str]
    ignored: List[str]
    new_parts: Tuple[str, ...] = ()

    def __str__(self) -> str:
        groups = [(self.loaded, 'loaded'),
                  *((names, f'adapted ({rule})') for rule, names in self.adapted.items()),
                  (self.initial, 'left at their initial values'),
                  (self.ignored, 'ignored in the file')]
        return '; '.join(
            f'{len(names)} {what}: {examples(names)}' if names else f'0 {what}'
            for names, what in groups)


def examples(names: List[str]) -> str:
    """The first three names of a list."""
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def is_counter(name: str) -> bool:
    """Whether an entry only counts batches; old files lack these entries."""
    return name.endswith('num_batches_tracked')


def find_backbone(model: nn.Module) -> Tuple[Optional[RLABackbone], str]:
    """The RLA backbone of a model, and the prefix of its state-dict keys."""
    if isinstance(model, RLABackbone):
        return model, ''
    backbone = getattr(model, 'backbone', None)
    return (backbone, BACKBONE) if isinstance(backbone, RLABackbone) else (None, '')


class BackboneFit:
    """What a backbone takes from a file. All names are without a prefix.

    Args:
        backbone: The backbone.
        weights: The content of the file.
        min_share: The share of the backbone's entries that must be in the file.
            0 takes every entry that has the right name and shape.

    Attributes:
        own: The state dict of the backbone.
        taken: The entries that come from the file, with the factors of ``neutral``.
        zeros: The convolutions that read h, set to zero if the hidden path is new.
        neutral: The entries of a new attention, and of the norms before it, that make
            it start as the identity.
        initial: The backbone's entries that keep their values.
        missing: The parts that the file does not contain.
        new: The prefixes of the entries of these parts.
    """

    def __init__(self, backbone: RLABackbone, weights: Weights, min_share: float) -> None:
        self.backbone, self.weights = backbone, weights
        self.own, self.given = backbone.state_dict(), weights.backbone
        self._names = {module: name for name, module in backbone.named_modules()}
        self.missing = missing_parts(backbone, self.given)
        prefixes = part_prefixes(backbone)
        self.new = tuple(prefix for part in self.missing for prefix in prefixes[part])
        self._check_architecture()
        self._check_update()
        self._check_depth()
        self._check_shapes()
        self.taken = {name: value for name, value in self.given.items() if name in self.own}
        self._check_shared_values()
        # h enters the main path only through these convolutions: W_h = 0.
        self.zeros = {} if 'rla' not in self.missing else {
            f'{self._names[conv]}.weight': torch.zeros_like(conv.weight)
            for conv in map(last_convolution, backbone.readers())}
        self.neutral = self._neutral_attention() if 'attention' in self.missing else {}
        self.taken.update(
            {name: value for name, value in self.neutral.items() if name in self.taken})
        known = {**self.taken, **self.zeros, **self.neutral}
        self.initial = [name for name in self.own if name not in known]
        if min_share > 0:
            self._check_parts()
            self._check_share(min_share)

    def _neutral_attention(self) -> Dict[str, Tensor]:
        """The entries that let a new attention start as the identity, exactly."""
        entries = {}
        for attention, norm in self.backbone.gates():
            zeros, gain = attention.neutral_start
            before = [f'{self._names.get(norm)}.{leaf}' for leaf in ('weight', 'bias')]
            if not all(name in self.given for name in before):
                continue  # nothing to compensate the gate with
            for leaf in zeros:
                name = f'{self._names[attention]}.{leaf}'
                entries[name] = torch.zeros_like(self.own[name])
            if gain != 1:
                entries.update({name: self.given[name] * gain for name in before})
        return entries

    def _stop(self, text: str) -> None:
        raise CheckpointError(f'checkpoint {self.weights.source} {text}')

    def _network(self) -> str:
        return f'this {type(self.backbone).__name__}'

    def _check_architecture(self) -> None:
        """Stop on a file that has no entry of the first block."""
        blocks = [re.match(r'(layer|stages\.)\d+\.\d+\.', name) for name in self.own]
        first = next((match[0] for match in blocks if match), '')
        block = [name for name in self.own if name.startswith(first)]
        if not any(name in self.given for name in block):
            self._stop(f'has another architecture than {self._network()}: it has none of '
                       f'{examples(block)}; it has {examples(list(self.weights.names.values()))}')

    def _check_update(self) -> None:
        """Stop on weights that were trained with another hidden path."""
        if not self.weights.has_hidden_path:
            return
        update, config = self.weights.update, self.backbone.rla_config
        if config is None:
            self._stop(f'is from an RLA network, and {self._network()} has rla=None; '
                       f'set model.backbone.rla={as_dict(update)}')
        own = config.update()
        other = {key: value for key, value in update.items() if own.get(key, value) != value}
        if not other:
            return
        reason = ''
        if self.weights.layout is AUTHORS_RESNET and 'variant' in other:
            reason = (' (the authors\' code adds the shortcut to y in place, so the ResNets that '
                      'they published were trained with v3; the configs *_rla_v3_* set it)')
        self._stop(
            f'was trained with rla={as_dict(other)}{reason}, and {self._network()} has '
            f'rla={as_dict({key: own[key] for key in other})}; set ' + ', '.join(
                f'model.backbone.rla.{key}={value!r}' for key, value in other.items()))

    def _check_depth(self) -> None:
        """Stop on weights of a network with more or fewer blocks."""
        own, found = _count_blocks(self.own), _count_blocks(self.given)
        own, found = ({stage: counts[stage] for stage in own if stage in found}
                      for counts in (own, found))
        if own == found:
            return
        fix = ''
        if isinstance(self.backbone, RLAResNet):
            expansion = 4 if 'layer1.0.conv3.weight' in self.given else 1
            fix = ''.join(f'; set model.backbone.depth={depth}' for depth, (block, blocks)
                          in RLAResNet.arch_settings.items()
                          if blocks == tuple(found.values()) and block.expansion == expansion)
        self._stop(f'has {list(found.values())} blocks in its stages, {self._network()} has '
                   f'{list(own.values())}{fix}')

    def _check_shapes(self) -> None:
        """Stop on an entry that has another shape."""
        for name, value in self.given.items():
            if name in self.own and self.own[name].shape != value.shape:
                self._stop(f'is from another network than {self._network()}: {name} has '
                           f'{shapes(value, self.own[name])}; check depth, base_channels, groups '
                           'and attention')

    def _check_shared_values(self) -> None:
        """Stop on two values for entries that share one parameter."""
        first: Dict[int, str] = {}
        for name, value in self.backbone.state_dict(keep_vars=True).items():
            other = first.setdefault(id(value), name)
            if other in self.taken and name in self.taken and not torch.equal(
                    self.taken[other], self.taken[name]):
                self._stop(f'has different values for {other} and {name}, which share one '
                           f'parameter in {self._network()}; set '
                           'model.backbone.shared_recurrent=False')

    def _check_parts(self) -> None:
        """Stop if the file has more in a part of the network, or nothing for a part."""
        fix = ('set deep_stem, attention, dcn and plugins as in training, or load what fits with '
               'init_cfg=dict(type="PretrainedBackbone", checkpoint=..., min_share=0)')
        parts = {name.split('.')[0] for name in self.own}
        more = [name for name in self.given if name not in self.own
                and name.split('.')[0] in parts and not self._is_unread(name)]
        if more:
            self._stop(f'has entries that {self._network()} does not have: {examples(more)}; '
                       f'{fix}')
        if not self.backbone.requires_all_parts:
            return
        wanted = {name.split('.')[0] for name in self._wanted()}
        without = sorted(wanted - {name.split('.')[0] for name in self.taken})
        if without:
            self._stop(f'has no entries for {", ".join(without)} of {self._network()}; {fix}')

    def _is_unread(self, name: str) -> bool:
        """Whether an entry computes an h that only a classifier or a later stage reads."""
        last = re.match(r'rla\.(\d+)\.', name)
        return bool(last) and int(last[1]) >= len(self.backbone.rla) - 1

    def _wanted(self) -> List[str]:
        """The entries that should come from the file."""
        return [name for name in self.own
                if not name.startswith(self.new) and not is_counter(name)]

    def _check_share(self, min_share: float) -> None:
        """Stop if too few entries come from the file."""
        wanted = self._wanted()
        share = sum(name in self.taken for name in wanted) / len(wanted)
        if share < min_share:
            self._stop(f'does not fit {self._network()}: it has {share:.0%} of the backbone, at '
                       f'least {min_share:.0%} is required ({examples(self.initial)} are '
                       'missing). To load what fits, set '
                       'init_cfg=dict(type="PretrainedBackbone", checkpoint=..., min_share=0)')


def part_prefixes(backbone: RLABackbone) -> Dict[str, Tuple[str, ...]]:
    """The prefixes of the entries that a plain network does not have, by part."""
    names = {module: name for name, module in backbone.named_modules()}
    return {part: tuple(f'{names[module]}.' for module in modules)
            for part, modules in backbone.parts().items()}


def missing_parts(backbone: RLABackbone, given: Iterable[str]) -> Tuple[str, ...]:
    """The parts of a backbone of which a file has no entry."""
    return tuple(part for part, prefixes in part_prefixes(backbone).items()
                 if prefixes and not any(name.startswith(prefixes) for name in given))


def _count_blocks(names: Iterable[str]) -> Dict[str, int]:
    """The number of blocks in each stage, by its name."""
    counts: Dict[str, int] = {}
    for name in names:
        match = re.match(r'(layer\d+|stages\.\d+)\.(\d+)\.', name)
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def shapes(there: Tensor, here: Tensor) -> str:
    """The shape of an entry in the file and in the model."""
    return f'shape {tuple(there.shape)} in the file, {tuple(here.shape)} here'


def _widen_classifier(own: Dict[str, Tensor], given: Dict[str, Tensor], k: int) -> List[str]:
    """Give the classifier of a plain network, in ``given``, zero columns for h."""
    name = 'head.fc.weight'
    if name not in own or name not in given:
        return []
    rows, columns = given[name].shape
    if tuple(own[name].shape) != (rows, columns + k):
        return []
    given[name] = torch.cat([given[name], given[name].new_zeros(rows, k)], 1)
    return [name]


def fit(model: nn.Module, weights: Weights, min_share: float = MIN_SHARE
        ) -> Tuple[Dict[str, Tensor], LoadReport]:
    """Choose what a model takes from a file.

    Args:
        model: An RLA backbone, or a model around one.
        weights: The content of the file.
        min_share: See :class:`BackboneFit`.

    Returns:
        tuple[dict[str, Tensor], LoadReport]: The state dict to load, with entries
        of the neck and heads that the model may know under other names, and the
        report.
    """
    backbone, prefix = find_backbone(model)
    part = BackboneFit(backbone, weights, min_share)
    own = {name: value for name, value in model.state_dict().items()
           if not name.startswith(prefix)} if prefix else {}
    given = {name: value for name, value in weights.entries.items()
             if not name.startswith(BACKBONE)}
    adapted = {f'renamed from {weights.layout.title}': [
        prefix + name for name in weights.renamed if name in part.own]}
    if part.neutral:
        adapted[NEUTRAL] = [prefix + name for name in part.neutral]
    if 'rla' in part.missing:
        adapted[WIDENED] = _widen_classifier(own, given, backbone.rla_config.channels)
        adapted[WARM_START] = [prefix + name for name in part.zeros]
    others = [name for name in given if name in own and own[name].shape != given[name].shape]
    ignored = [f'{name} ({shapes(given[name], own[name])})' for name in others]
    places = {*own, *(BACKBONE + name for name in part.own)}
    ignored += dict.fromkeys(weights.names[name] for name in weights.entries if name not in places)
    values = {**part.taken, **part.zeros, **part.neutral}
    state = {prefix + name: value for name, value in values.items()}
    if prefix:
        state.update((name, value) for name, value in given.items() if name not in others)
    changed = {name for names in adapted.values() for name in names}
    report = LoadReport(
        [name for name in state if name not in changed
         and (name in own or name.startswith(prefix))],
        {rule: names for rule, names in adapted.items() if names},
        [prefix + name for name in part.initial] + [name for name in own if name not in state],
        ignored, part.missing)
    return state, report
