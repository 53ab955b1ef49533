"""Weights into models: through ``init_cfg``, ``load_from``, ``resume`` and the tools.

mmengine loads what happens to have the same name and says little of the rest.
A model with a backbone of mmrla's takes the weights of any layout that
:mod:`mmrla.checkpoint` knows, stops on a file that does not fit before
anything is changed, and reports what became of every entry. Other models are
loaded as ever.
"""
import logging
import re
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, PretrainedInit, is_model_wrapper, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from torch import Tensor, nn

from .checkpoint import AUTHORS_RESNET, BACKBONE, Weights, to_ours, weights_of
from .compat import wrap_once
from .models.base import RLABackbone
from .models.resnet import RLAResNet
from .models.rla import last_convolution
from .safe_load import CheckpointError

# Of a backbone's entries at least this share must come from the file. The
# deformable convolutions or plugins that a plain file lacks are below the rest.
MIN_SHARE = 0.7
WARM_START = 'zero, so that the plain network\'s outputs stay until training moves them'
WIDENED = 'widened by zeros for h'


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


def _check_update(backbone: RLABackbone, weights: Weights) -> None:
    """Stop on weights that were trained with another hidden path."""
    if not weights.has_hidden_path:
        return
    own = {} if backbone.rla_config is None else backbone.rla_config.update()
    if not own:
        raise CheckpointError(
            f'checkpoint {weights.source} is of an RLA network, and this {_name(backbone)} has '
            f'rla=None; set model.backbone.rla={_as_dict(weights.update)}')
    other = {key: value for key, value in weights.update.items() if own.get(key, value) != value}
    if not other:
        return
    reason = ''
    if weights.layout is AUTHORS_RESNET and 'variant' in other:
        reason = (' (the authors\' program adds the shortcut to y in place, so that all its '
                  'ResNets were trained with v3; the configs *_rla_v3_* have it set)')
    raise CheckpointError(
        f'checkpoint {weights.source} was trained with rla={_as_dict(other)}{reason}, and this '
        f'{_name(backbone)} has rla={_as_dict({key: own[key] for key in other})}; set '
        + ', '.join(f'model.backbone.rla.{key}={value!r}' for key, value in other.items()))


def _name(backbone: RLABackbone) -> str:
    return type(backbone).__name__


def _as_dict(values: Dict[str, Any]) -> str:
    return 'dict(' + ', '.join(f'{key}={value!r}' for key, value in values.items()) + ')'


def _count_blocks(names: Any) -> Dict[str, int]:
    """How many blocks each stage has, by its name."""
    counts: Dict[str, int] = {}
    for name in names:
        match = re.match(r'(layer\d+)\.(\d+)\.', name)
        if match:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _check_depth(backbone: RLABackbone, weights: Weights) -> None:
    """Stop on weights of a network with more or fewer blocks."""
    own, found = (_count_blocks(names) for names in (backbone.state_dict(), weights.backbone))
    own, found = ({stage: counts[stage] for stage in own if stage in found}
                  for counts in (own, found))
    if own == found:
        return
    has_conv3 = 'layer1.0.conv3.weight' in weights.backbone
    depths = [depth for depth, (block, blocks) in RLAResNet.arch_settings.items()
              if blocks == tuple(found.values()) and (block.expansion == 4) == has_conv3]
    fix = f'; set model.backbone.depth={depths[0]}' if depths else ''
    raise CheckpointError(
        f'checkpoint {weights.source} has {list(found.values())} blocks in its stages, this '
        f'{_name(backbone)} has {list(own.values())}{fix}')


def _warm_start(backbone: RLABackbone, prefix: str) -> Dict[str, Tensor]:
    """What makes an RLA network compute what the plain one does: W_h = 0."""
    names = {module: name for name, module in backbone.named_modules()}
    convolutions = map(last_convolution, backbone.readers())
    return {f'{prefix}{names[conv]}.weight': torch.zeros_like(conv.weight)
            for conv in convolutions}


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


def _drop_other_shapes(own: Dict[str, Tensor], given: Dict[str, Tensor], prefix: str,
                       weights: Weights, backbone: RLABackbone) -> List[str]:
    """Take entries of another shape out of ``given``; in the backbone they stop."""
    dropped = []
    for name in [name for name in given if name in own and own[name].shape != given[name].shape]:
        shapes = f'shape {tuple(given[name].shape)} there, {tuple(own[name].shape)} here'
        if name.startswith(prefix):
            raise CheckpointError(
                f'checkpoint {weights.source} is of another network than this {_name(backbone)}: '
                f'{name} has {shapes}; check depth, base_channels, groups and attention')
        dropped.append(f'{name} ({shapes})')
        del given[name]
    return dropped


def _check_share(backbone: RLABackbone, taken: List[str], is_warm_start: bool, report: LoadReport,
                 weights: Weights, min_share: float) -> None:
    """Stop if too little of the backbone came from the file."""
    hidden = {id(value) for part in backbone.hidden_path() for value in part.state_dict(
        keep_vars=True).values()} if is_warm_start else set()
    wanted = {name for name, value in backbone.state_dict(keep_vars=True).items()
              if id(value) not in hidden and not name.endswith('num_batches_tracked')}
    share = len(wanted.intersection(taken)) / len(wanted)
    if share < min_share:
        raise CheckpointError(
            f'checkpoint {weights.source} hardly fits {_name(backbone)}: {share:.0%} of the '
            f'backbone, at least {min_share:.0%} must be there ({report}). To use what fits all '
            'the same, set min_share in init_cfg=dict(type="Pretrained", ...)')


def fit(model: nn.Module, weights: Weights, min_share: float = MIN_SHARE
        ) -> Tuple[Dict[str, Tensor], LoadReport]:
    """Choose what a model takes from a file; nothing is changed yet.

    Args:
        model: A backbone of mmrla's, or a model around one.
        weights: What the file has.
        min_share: Of the backbone's entries at least this share must be there.

    Returns:
        tuple[dict[str, Tensor], LoadReport]: What to load into the model, and
        what becomes of all entries.
    """
    backbone, prefix = find_backbone(model)
    _check_update(backbone, weights)
    _check_depth(backbone, weights)
    own = model.state_dict()
    given = dict(weights.entries if prefix else weights.backbone)
    renamed = [name if prefix else name.removeprefix(BACKBONE) for name in weights.renamed]
    adapted = {f'from the names of {weights.layout.title}': [n for n in renamed if n in own]}
    is_warm_start = backbone.rla is not None and not weights.has_hidden_path
    zeros: Dict[str, Tensor] = {}
    if is_warm_start:
        zeros = _warm_start(backbone, prefix)
        adapted[WIDENED] = _widen_classifier(own, given, backbone.rla_config.channels)
        adapted[WARM_START] = list(zeros)
    ignored = _drop_other_shapes(own, given, prefix, weights, backbone)
    places = own if prefix else {BACKBONE + name for name in own}
    ignored += list(dict.fromkeys(theirs for ours, theirs in weights.names.items()
                                  if ours not in places))
    changed = {name for names in adapted.values() for name in names}
    state = {name: value for name, value in {**given, **zeros}.items() if name in own}
    report = LoadReport(
        [name for name in state if name not in changed],
        {rule: names for rule, names in adapted.items() if names},
        [name for name in own if name not in state], ignored)
    _check_attention(backbone, report, weights)
    _check_share(backbone, [n.removeprefix(prefix) for n in given if n in own and n.startswith(
        prefix)], is_warm_start, report, weights, min_share)
    return state, report


def _check_attention(backbone: RLABackbone, report: LoadReport, weights: Weights) -> None:
    """Stop on a file whose attention would be dropped without a word."""
    dropped = [name for name in report.ignored
               if re.search(r'\.(attention|se|eca)\.', name)]
    if dropped:
        raise CheckpointError(
            f'checkpoint {weights.source} has an attention that this {_name(backbone)} has not '
            f'({_examples(dropped)}); set model.backbone.attention as it was trained')


def _log(report: LoadReport, model: nn.Module, weights: Weights) -> None:
    """Say what was loaded, and what a warm start needs in order to train."""
    backbone, _ = find_backbone(model)
    is_warm_start = WARM_START in report.adapted
    level = logging.WARNING if report.initial and not is_warm_start else logging.INFO
    print_log(f'{type(model).__name__} from {weights.source}: {report}', logger='current',
              level=level)
    keeps = getattr(backbone, 'norm_eval', False) or getattr(backbone, 'frozen_stages', -1) > 0
    if is_warm_start and keeps and backbone.rla_config.pretrained:
        print_log(
            'the hidden path is new, and frozen_stages or norm_eval would keep parts of it at '
            'their initial values; set model.backbone.rla.pretrained=False to train all of it, '
            'as the *_warmstart.py configs do', logger='current', level=logging.WARNING)


def load_weights(model: nn.Module, filename: str, prefix: Optional[str] = None,
                 map_location: Any = 'cpu', min_share: float = MIN_SHARE) -> LoadReport:
    """Load a checkpoint into a backbone of mmrla's or a model around one.

    Args:
        model: Left as it was if the file does not fit.
        filename: A path, a URL or any other name that mmengine knows.
        prefix: Take only the entries behind this one, such as ``teacher.``.
        map_location: As in :func:`torch.load`.
        min_share: See :func:`fit`.

    Returns:
        LoadReport: What became of all entries; it is logged, too.
    """
    state = weights_of(CheckpointLoader.load_checkpoint(filename, map_location))
    if prefix:
        state = _behind(state, prefix.rstrip('.') + '.', filename)
    weights = to_ours(state)
    state, report = fit(model, weights, min_share)
    model.load_state_dict(state, strict=False)
    _log(report, model, weights)
    return report


def _behind(state: Dict[str, Tensor], prefix: str, filename: str) -> Dict[str, Tensor]:
    """The entries behind a prefix, without it."""
    part = OrderedDict((name.removeprefix(prefix), value) for name, value in state.items()
                       if name.startswith(prefix))
    if not part:
        raise CheckpointError(f'checkpoint {filename} has no entry that begins with {prefix!r}, '
                              f'its first ones are: {_examples(list(state))}')
    part._metadata = state._metadata
    return part


@WEIGHT_INITIALIZERS.register_module(name='Pretrained', force=True)
class BackboneInit(PretrainedInit):
    """mmengine's ``Pretrained``, which knows mmrla's backbones.

    Args:
        checkpoint: A path, a URL or any other name that mmengine knows.
        prefix: As in mmengine; ``backbone.`` is found without it.
        map_location: As in :func:`torch.load`.
        min_share: Of a backbone's entries at least this share must be in the
            file; 0 takes whatever fits.
    """

    def __init__(self, checkpoint: str, prefix: Optional[str] = None, map_location: Any = 'cpu',
                 min_share: float = MIN_SHARE) -> None:
        super().__init__(checkpoint, prefix, map_location)
        self.min_share = min_share

    def __call__(self, module: nn.Module) -> None:
        """Load the weights into a module."""
        if find_backbone(module)[0] is None:
            super().__call__(module)
            return
        load_weights(module, self.checkpoint, self.prefix, self.map_location, self.min_share)
        if hasattr(module, '_params_init_info'):
            update_init_info(module, init_info=self._get_init_info())


def _load_state_dict(original: Callable, module: nn.Module, state_dict: Dict[str, Tensor],
                     strict: bool = False, logger: Any = None) -> None:
    """mmengine's ``load_state_dict``, which all its loading of models ends in."""
    model = module
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    if find_backbone(model)[0] is None:
        original(module, state_dict, strict, logger)
        return
    weights = to_ours(weights_of(state_dict))
    state, report = fit(model, weights)
    if strict and (report.initial or report.ignored):
        raise CheckpointError(f'checkpoint {weights.source} does not fit exactly: {report}')
    original(module, {**model.state_dict(), **state}, strict, logger)
    _log(report, model, weights)


wrap_once(mmengine_checkpoint, 'load_state_dict', _load_state_dict)
