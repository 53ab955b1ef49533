"""Weights into models: through ``init_cfg``, ``load_from``, ``resume`` and the tools.

mmengine loads what happens to have the same name and says little of the rest.
A model with a backbone of mmrla's takes the weights of any layout that
:mod:`mmrla.weights.layouts` knows, stops on a file that does not fit before
anything is changed, and reports what became of every entry. Other models are
loaded as ever.
"""
import logging
import re
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import mmengine.runner
import torch
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, PretrainedInit, is_model_wrapper, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from torch import Tensor, nn

from mmrla.models.backbones.base import RLABackbone
from mmrla.models.backbones.resnet import RLAResNet
from mmrla.models.rla import last_convolution
from mmrla.models.with_rla import WithRLA
from mmrla.stack import wrap_once

from .layouts import AUTHORS_RESNET, BACKBONE, Weights, as_dict, to_ours, weights_of
from .reading import CheckpointError, Metadata, metadata_of, source_of

# Of a backbone's entries at least this share must come from the file. What a plain
# file lacks for deformable convolutions, plugins or attention is less than the rest.
MIN_SHARE = 0.7
WARM_START = 'zero, so that the plain network\'s outputs stay until training moves them'
WIDENED = 'widened by zeros for h'
BY_THE_MODEL = 'by the model\'s own rules'


class LoadReport(NamedTuple):
    """What became of the entries of a file and of a model.

    Attributes:
        loaded: Entries that the model took from the file as they are.
        adapted: By rule, entries that it took under another name or changed.
        initial: Entries of the model that keep their initial values.
        ignored: Entries of the file that went nowhere, and why if their name
            is in the model.
    """
    loaded: List[str]
    adapted: Dict[str, List[str]]
    initial: List[str]
    ignored: List[str]

    def __str__(self) -> str:
        groups = [(self.loaded, 'loaded'),
                  *((names, f'adapted ({rule})') for rule, names in self.adapted.items()),
                  (self.initial, 'left at their initial values'),
                  (self.ignored, 'of the file ignored')]
        return '; '.join(
            f'{len(names)} {what}: {_examples(names)}' if names else f'0 {what}'
            for names, what in groups)


def _examples(names: List[str]) -> str:
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def find_backbone(model: nn.Module) -> Tuple[Optional[RLABackbone], str]:
    """The backbone of mmrla's in a model, and the prefix of its entries."""
    if isinstance(model, RLABackbone):
        return model, ''
    backbone = getattr(model, 'backbone', None)
    return (backbone, BACKBONE) if isinstance(backbone, RLABackbone) else (None, '')


class BackboneFit:
    """What a backbone takes from a file; nothing is changed yet.

    Names are the backbone's own, without a prefix.

    Args:
        backbone: The backbone.
        weights: What the file has.
        min_share: Of the backbone's entries at least this share must be there;
            0 takes whatever has the right name and shape.

    Attributes:
        taken: What comes from the file.
        zeros: What a warm start sets to zero.
        initial: The backbone's entries that keep their values.
        hidden: The prefixes of the entries that a plain network does not have.
    """

    def __init__(self, backbone: RLABackbone, weights: Weights, min_share: float) -> None:
        self.backbone, self.weights = backbone, weights
        self.own, self.given = backbone.state_dict(), weights.backbone
        names = {module: name for name, module in backbone.named_modules()}
        self.hidden = tuple(f'{names[part]}.' for part in backbone.hidden_path())
        self.is_warm_start = backbone.rla is not None and not weights.has_hidden_path
        self._check_architecture()
        self._check_update()
        self._check_depth()
        self._check_shapes()
        self.taken = {name: value for name, value in self.given.items() if name in self.own}
        self._check_shared_values()
        # h enters the main path through nothing but these: W_h = 0.
        self.zeros = {} if not self.is_warm_start else {
            f'{names[conv]}.weight': torch.zeros_like(conv.weight)
            for conv in map(last_convolution, backbone.readers())}
        self.initial = [name for name in self.own if name not in {**self.taken, **self.zeros}]
        if min_share > 0:
            self._check_parts()
            self._check_share(min_share)

    def _stop(self, text: str) -> None:
        raise CheckpointError(f'checkpoint {self.weights.source} {text}')

    def _network(self) -> str:
        return f'this {type(self.backbone).__name__}'

    def _check_architecture(self) -> None:
        """Stop on a file that has nothing of the first block."""
        blocks = [re.match(r'(layer|stages\.)\d+\.\d+\.', name) for name in self.own]
        first = next((match[0] for match in blocks if match), '')
        block = [name for name in self.own if name.startswith(first)]
        if not any(name in self.given for name in block):
            self._stop(f'is of another architecture than {self._network()}: it has none of '
                       f'{_examples(block)}; it has {_examples(list(self.weights.names.values()))}')

    def _check_update(self) -> None:
        """Stop on weights that were trained with another hidden path."""
        if not self.weights.has_hidden_path:
            return
        update, config = self.weights.update, self.backbone.rla_config
        if config is None:
            self._stop(f'is of an RLA network, and {self._network()} has rla=None; '
                       f'set model.backbone.rla={as_dict(update)}')
        own = config.update()
        other = {key: value for key, value in update.items() if own.get(key, value) != value}
        if not other:
            return
        reason = ''
        if self.weights.layout is AUTHORS_RESNET and 'variant' in other:
            reason = (' (the authors\' program adds the shortcut to y in place, so that the '
                      'ResNets it was published with were trained with v3; the configs *_rla_v3_* '
                      'have it set)')
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
                self._stop(f'is of another network than {self._network()}: {name} has '
                           f'{_shapes(value, self.own[name])}; check depth, base_channels, groups '
                           'and attention')

    def _check_shared_values(self) -> None:
        """Stop on two values for what is one parameter here."""
        first: Dict[int, str] = {}
        for name, value in self.backbone.state_dict(keep_vars=True).items():
            other = first.setdefault(id(value), name)
            if other in self.taken and name in self.taken and not torch.equal(
                    self.taken[other], self.taken[name]):
                self._stop(f'has different values for {other} and {name}, which are one in '
                           f'{self._network()}; set model.backbone.shared_recurrent=False')

    def _check_parts(self) -> None:
        """Stop if the file has more in a part of the network, or nothing for one."""
        fix = ('set deep_stem, attention, dcn and plugins as it was trained, or min_share=0 in '
               'init_cfg=dict(type="Pretrained", ...) to do without')
        parts = {name.split('.')[0] for name in self.own}
        more = [name for name in self.given if name not in self.own
                and name.split('.')[0] in parts and not self._is_unread(name)]
        if more:
            self._stop(f'has what {self._network()} has no place for: {_examples(more)}; {fix}')
        if isinstance(self.backbone, WithRLA):
            return  # a network may have norms for detection that a classifier's file lacks
        wanted = {name.split('.')[0] for name in self._wanted()}
        without = sorted(wanted - {name.split('.')[0] for name in self.taken})
        if without:
            self._stop(f'has nothing for {", ".join(without)} of {self._network()}; {fix}')

    def _is_unread(self, name: str) -> bool:
        """Whether it makes an h that only a classifier, or a later stage, reads."""
        last = re.match(r'rla\.(\d+)\.', name)
        return bool(last) and int(last[1]) >= len(self.backbone.rla) - 1

    def _wanted(self) -> List[str]:
        """The entries that should come from the file."""
        hidden = self.hidden if self.is_warm_start else ()
        return [name for name in self.own
                if not name.startswith(hidden) and not name.endswith('num_batches_tracked')]

    def _check_share(self, min_share: float) -> None:
        """Stop if too little comes from the file."""
        wanted = self._wanted()
        share = sum(name in self.taken for name in wanted) / len(wanted)
        if share < min_share:
            self._stop(f'hardly fits {self._network()}: it has {share:.0%} of the backbone, at '
                       f'least {min_share:.0%} must be there ({_examples(self.initial)} are not). '
                       'To use what fits all the same, set min_share=0 in '
                       'init_cfg=dict(type="Pretrained", ...)')


def _count_blocks(names: Iterable[str]) -> Dict[str, int]:
    """How many blocks each stage has, by its name."""
    counts: Dict[str, int] = {}
    for name in names:
        match = re.match(r'(layer\d+|stages\.\d+)\.(\d+)\.', name)
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _shapes(there: Tensor, here: Tensor) -> str:
    return f'shape {tuple(there.shape)} there, {tuple(here.shape)} here'


def _widen_classifier(own: Dict[str, Tensor], given: Dict[str, Tensor], k: int) -> List[str]:
    """Let a plain network's classifier, in ``given``, see h behind x with zeros."""
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
    """Choose what a model takes from a file; nothing is changed yet.

    Args:
        model: A backbone of mmrla's, or a model around one.
        weights: What the file has.
        min_share: See :class:`BackboneFit`.

    Returns:
        tuple[dict[str, Tensor], LoadReport]: What to load into the model, with
        entries of its neck and heads that it may know under other names, and
        what becomes of all entries.
    """
    backbone, prefix = find_backbone(model)
    part = BackboneFit(backbone, weights, min_share)
    own = {name: value for name, value in model.state_dict().items()
           if not name.startswith(prefix)} if prefix else {}
    given = {name: value for name, value in weights.entries.items()
             if not name.startswith(BACKBONE)}
    adapted = {f'from the names of {weights.layout.title}': [
        prefix + name for name in weights.renamed if name in part.own]}
    if part.is_warm_start:
        adapted[WIDENED] = _widen_classifier(own, given, backbone.rla_config.channels)
        adapted[WARM_START] = [prefix + name for name in part.zeros]
    others = [name for name in given if name in own and own[name].shape != given[name].shape]
    ignored = [f'{name} ({_shapes(given[name], own[name])})' for name in others]
    places = {*own, *(BACKBONE + name for name in part.own)}
    ignored += dict.fromkeys(weights.names[name] for name in weights.entries if name not in places)
    state = {prefix + name: value for name, value in {**part.taken, **part.zeros}.items()}
    if prefix:
        state.update((name, value) for name, value in given.items() if name not in others)
    changed = {name for names in adapted.values() for name in names}
    report = LoadReport(
        [name for name in state if name not in changed
         and (name in own or name.startswith(prefix))],
        {rule: names for rule, names in adapted.items() if names},
        [prefix + name for name in part.initial] + [name for name in own if name not in state],
        ignored)
    return state, report


def _log(report: LoadReport, model: nn.Module, weights: Weights) -> None:
    """Say what was loaded, and what a warm start needs in order to train."""
    backbone, prefix = find_backbone(model)
    is_warm_start = WARM_START in report.adapted
    hidden = tuple(prefix + name for name, module in backbone.named_modules()
                   if module in backbone.hidden_path()) if is_warm_start else ()
    random = [name for name in report.initial
              if not name.startswith(hidden) and not name.endswith('num_batches_tracked')]
    print_log(f'{type(model).__name__} from {weights.source}: {report}', logger='current',
              level=logging.WARNING if random else logging.INFO)
    if random and is_warm_start:
        print_log(f'of these {len(random)} are not the hidden path\'s: {_examples(random)}',
                  logger='current', level=logging.WARNING)
    keeps = getattr(backbone, 'norm_eval', False) or getattr(backbone, 'frozen_stages', -1) > 0
    if is_warm_start and keeps and backbone.rla_config.pretrained:
        print_log(
            'the hidden path is new, and frozen_stages or norm_eval would keep parts of it at '
            'their initial values; set model.backbone.rla.pretrained=False to train all of it, '
            'as the *_warmstart.py configs do', logger='current', level=logging.WARNING)


def _load(original: Callable, module: nn.Module, model: nn.Module, state: Dict[str, Tensor],
          min_share: float = MIN_SHARE, strict: bool = False, logger: Any = None) -> LoadReport:
    """Load a state dict into a model with a backbone of mmrla's.

    Args:
        original: mmengine's ``load_state_dict``, which lets the model's neck
            and heads apply rules of their own, as mmdet's do for old files.
        module: What it loads into.
        model: The same without wrappers.
        state: What :func:`~mmrla.weights.layouts.weights_of` returns.
        min_share: See :func:`fit`.
        strict: Whether all must be there and nothing else.
        logger: As in mmengine.
    """
    weights = to_ours(state, find_backbone(model)[0].state_dict())
    chosen, report = fit(model, weights, min_share)
    prefix = find_backbone(model)[1]
    differ = [name for name in report.initial + report.ignored
              if name.startswith(prefix) and not name.endswith('num_batches_tracked')]
    if strict and differ:
        raise CheckpointError(f'checkpoint {weights.source} does not fit exactly: {report}')
    own = model.state_dict()
    complete = OrderedDict(
        {**{name: value for name, value in own.items() if name.startswith(prefix)}, **chosen})
    complete._metadata = metadata_of(state)
    before = {name: own[name].clone() for name in report.initial if not name.startswith(prefix)}
    original(module, complete, strict, logger)
    moved = [name for name in before if not torch.equal(before[name], own[name])]
    report = _with_moved(report, moved)
    _log(report, model, weights)
    return report


def _with_moved(report: LoadReport, moved: List[str]) -> LoadReport:
    """A report that knows what the model took under names of its own choice."""
    if not moved:
        return report
    ends = {name.split('.', 1)[-1] for name in moved}
    return LoadReport(
        report.loaded, {**report.adapted, BY_THE_MODEL: moved},
        [name for name in report.initial if name not in moved],
        [name for name in report.ignored if name.split('.', 1)[-1] not in ends])


def load_weights(model: nn.Module, filename: str, prefix: Optional[str] = None,
                 map_location: Any = 'cpu', min_share: float = MIN_SHARE) -> LoadReport:
    """Load a checkpoint into a backbone of mmrla's or a model around one.

    Args:
        model: Left as it was if the file does not fit.
        filename: A path, a URL or any other name that mmengine knows.
        prefix: Take only the entries behind this one, such as ``teacher.``.
        map_location: As in :func:`torch.load`.
        min_share: See :class:`BackboneFit`.

    Returns:
        LoadReport: What became of all entries; it is logged, too.
    """
    if find_backbone(model)[0] is None:
        raise ValueError(f'{type(model).__name__} has no backbone of mmrla\'s')
    state = weights_of(CheckpointLoader.load_checkpoint(filename, map_location))
    if prefix:
        state = _behind(state, prefix.rstrip('.') + '.')
    original = mmengine_checkpoint.load_state_dict.__wrapped__
    return _load(original, model, model, state, min_share)


def _behind(state: Dict[str, Tensor], prefix: str) -> Dict[str, Tensor]:
    """The entries behind a prefix, without it, and what is said of their modules."""
    part = OrderedDict((name.removeprefix(prefix), value) for name, value in state.items()
                       if name.startswith(prefix))
    if not part:
        raise CheckpointError(
            f'checkpoint {source_of(state)} has no entry that begins with {prefix!r}, its first '
            f'ones are: {_examples(list(state))}')
    metadata = Metadata((name.removeprefix(prefix), value)
                        for name, value in metadata_of(state).items() if name.startswith(prefix))
    metadata.source = source_of(state)
    part._metadata = metadata
    return part


@WEIGHT_INITIALIZERS.register_module(name='Pretrained', force=True)
class BackboneInit(PretrainedInit):
    """mmengine's ``Pretrained``, with a threshold for mmrla's backbones.

    Args:
        checkpoint: A path, a URL or any other name that mmengine knows.
        prefix: As in mmengine; ``backbone.`` is found without it.
        map_location: As in :func:`torch.load`.
        min_share: Of a backbone's entries at least this share must be in the
            file; 0 takes whatever has the right name and shape.
    """

    def __init__(self, checkpoint: str, prefix: Optional[str] = None, map_location: Any = 'cpu',
                 min_share: float = MIN_SHARE) -> None:
        super().__init__(checkpoint, prefix, map_location)
        self.min_share = min_share


def _initialise(original: Callable, initialiser: PretrainedInit, module: nn.Module) -> None:
    """mmengine's ``Pretrained``, which knows mmrla's backbones."""
    if find_backbone(module)[0] is None:
        original(initialiser, module)
        return
    load_weights(module, initialiser.checkpoint, initialiser.prefix, initialiser.map_location,
                 getattr(initialiser, 'min_share', MIN_SHARE))
    if hasattr(module, '_params_init_info'):
        update_init_info(module, init_info=initialiser._get_init_info())


def _load_state_dict(original: Callable, module: nn.Module, state_dict: Dict[str, Tensor],
                     strict: bool = False, logger: Any = None) -> None:
    """mmengine's ``load_state_dict``, which all its loading of models ends in."""
    model = module
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    if find_backbone(model)[0] is not None:
        _load(original, module, model, weights_of(state_dict), strict=strict, logger=logger)
        return
    for name, part in model.named_modules():  # a student's and a teacher's
        prefix = f'{name}.'
        if isinstance(part, RLABackbone) and any(key.startswith(prefix) for key in state_dict):
            BackboneFit(part, to_ours(_behind(state_dict, prefix)), MIN_SHARE)
    original(module, state_dict, strict, logger)


wrap_once(PretrainedInit, '__call__', _initialise)
wrap_once(mmengine_checkpoint, 'load_state_dict', _load_state_dict)
mmengine.runner.load_state_dict = mmengine_checkpoint.load_state_dict
