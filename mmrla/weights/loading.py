"""Load weights into models: by name, by ``init_cfg``, and by ``load_state_dict``.

A model with an RLA backbone takes the weights of any layout in
:mod:`mmrla.weights.layouts`. A file that does not fit raises before the backbone is
changed, and the log reports what happened to every entry.
"""
import logging
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

import torch
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, PretrainedInit, is_model_wrapper, update_init_info
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import load_state_dict
from torch import Tensor, nn

from mmrla.models.backbones.base import RLABackbone

from .errors import CheckpointError
from .fit import (
    MIN_SHARE,
    BackboneFit,
    LoadReport,
    examples,
    find_backbone,
    fit,
    is_counter,
    missing_parts,
    part_prefixes,
)
from .layouts import Weights, to_ours, weights_of
from .reading import Metadata, metadata_of, source_of
from .sources import load_checkpoint

BY_THE_MODEL = 'renamed by the model\'s own rules'
PART_TITLES = dict(rla='the hidden path', attention='the attention')


def load_weights(model: nn.Module, filename: str, prefix: Optional[str] = None,
                 map_location: Any = 'cpu', min_share: float = MIN_SHARE) -> LoadReport:
    """Load a checkpoint into an RLA backbone or a model around one.

    Args:
        model: Unchanged if the file does not fit.
        filename: A path, a URL or any other name that mmengine knows.
        prefix: Take only the entries with this prefix, such as ``teacher.``.
        map_location: As in :func:`torch.load`.
        min_share: See :class:`~mmrla.weights.fit.BackboneFit`.

    Returns:
        LoadReport: What happened to all entries; it is also logged.
    """
    if not has_backbone(model):
        raise ValueError(f'{type(model).__name__} has no RLA backbone')
    state = weights_of(load_checkpoint(filename, map_location))
    if prefix:
        state = _with_prefix(state, prefix.rstrip('.') + '.')
    return PreparedState(model, state, min_share).load(model)


class PreparedState:
    """A state dict of any layout, fitted to a model but not loaded yet.

    Args:
        model: The model, unchanged here. It has an RLA backbone.
        state: What :func:`~mmrla.weights.layouts.weights_of` takes.
        min_share: See :class:`~mmrla.weights.fit.BackboneFit`.
        strict: Whether every entry must be there, and nothing else.

    Attributes:
        state: The state dict under the model's names, complete for the backbone.
    """

    def __init__(self, model: nn.Module, state: Dict[str, Tensor], min_share: float = MIN_SHARE,
                 strict: bool = False) -> None:
        self.weights = to_ours(weights_of(state), find_backbone(model)[0].state_dict())
        chosen, self.report = fit(model, self.weights, min_share)
        _, self.prefix = find_backbone(model)
        self.strict = strict
        differ = [name for name in self.report.initial + self.report.ignored
                  if name.startswith(self.prefix) and not is_counter(name)]
        if strict and differ:
            raise CheckpointError(
                f'checkpoint {self.weights.source} does not match exactly: {self.report}')
        self.state = OrderedDict(
            (name, value) for name, value in model.state_dict().items()
            if name.startswith(self.prefix))
        self.state.update(chosen)
        self.state._metadata = self._metadata(metadata_of(state))

    def _metadata(self, metadata: Dict[str, Any]) -> Dict[str, Any]:
        """The metadata of the file, with the new parts where the backbone looks for them."""
        module = self.prefix.rstrip('.')
        parts = {*self.report.new_parts, *self.weights.new_parts}
        changed = Metadata(metadata)
        changed.source = self.weights.source
        changed[module] = dict(metadata.get(module) or {}, new_parts=sorted(parts))
        return changed

    def load(self, model: nn.Module) -> LoadReport:
        """Load it; log and return the report."""
        own = model.state_dict()
        before = {name: own[name].clone() for name in self.report.initial
                  if not name.startswith(self.prefix)}
        load_state_dict(model, self.state, self.strict, logger='current')
        moved = [name for name in before if not torch.equal(before[name], own[name])]
        report = _with_moved(self.report, moved)
        _log(report, find_backbone(model)[0], self.prefix, self.weights)
        return report


def has_backbone(model: nn.Module) -> bool:
    """Whether a model is an RLA backbone, or has one as ``backbone``."""
    return find_backbone(model)[0] is not None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP and test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def check_parts(model: nn.Module, state: Dict[str, Tensor]) -> None:
    """Check the RLA backbones inside a model, such as those of a student and a teacher."""
    for name, part in model.named_modules():
        prefix = f'{name}.'
        if isinstance(part, RLABackbone) and any(key.startswith(prefix) for key in state):
            weights = to_ours(_with_prefix(state, prefix), part.state_dict())
            BackboneFit(part, weights, MIN_SHARE)


def _with_moved(report: LoadReport, moved: List[str]) -> LoadReport:
    """A report that includes the entries that the model renamed by itself."""
    if not moved:
        return report
    ends = {name.split('.', 1)[-1] for name in moved}
    return report._replace(
        adapted={**report.adapted, BY_THE_MODEL: moved},
        initial=[name for name in report.initial if name not in moved],
        ignored=[name for name in report.ignored if name.split('.', 1)[-1] not in ends])


def _with_prefix(state: Dict[str, Tensor], prefix: str) -> Dict[str, Tensor]:
    """The entries with a prefix, without it, and the metadata of their modules."""
    part = OrderedDict((name.removeprefix(prefix), value) for name, value in state.items()
                       if name.startswith(prefix))
    if not part:
        raise CheckpointError(
            f'checkpoint {source_of(state)} has no entry that begins with {prefix!r}; its first '
            f'entries are {examples(list(state))}')
    metadata = Metadata((name.removeprefix(prefix), value)
                        for name, value in metadata_of(state).items() if name.startswith(prefix))
    metadata.source = source_of(state)
    part._metadata = metadata
    return part


def _log(report: LoadReport, backbone: RLABackbone, prefix: str, weights: Weights) -> None:
    """Log the report; a warning if entries other than those of new parts stay random."""
    new = tuple(prefix + name for part in report.new_parts
                for name in part_prefixes(backbone)[part])
    random = [name for name in report.initial
              if not name.startswith(new) and not is_counter(name)]
    print_log(f'{type(backbone).__name__} from {weights.source}: {report}', logger='current',
              level=logging.WARNING if random else logging.INFO)
    if random and new:
        print_log(f'{len(random)} of these are not in a new part: {examples(random)}',
                  logger='current', level=logging.WARNING)
    for part in report.new_parts:
        print_log(f'{PART_TITLES[part]} is new: it trains in every stage, whatever frozen_stages '
                  'and norm_eval are', logger='current')


def find_new_parts(model: nn.Module, checkpoint: Dict[str, Any]) -> Tuple[str, ...]:
    """The parts of a model's backbone that a checkpoint brings no weights for.

    Args:
        model: The model; it has an RLA backbone.
        checkpoint: What :func:`~mmrla.weights.sources.load_checkpoint` returns. Its tensors
            need no values (``map_location='meta'``).
    """
    backbone = find_backbone(model)[0]
    weights = to_ours(weights_of(checkpoint), backbone.state_dict())
    missing = missing_parts(backbone, weights.backbone)
    return tuple({*missing, *weights.new_parts})


@WEIGHT_INITIALIZERS.register_module()
class PretrainedBackbone(PretrainedInit):
    """mmengine's ``Pretrained`` for RLA backbones, with a threshold.

    An RLA backbone uses this initializer for ``init_cfg=dict(type='Pretrained')``
    too. Name it to set ``min_share``.

    Args:
        checkpoint: A path, a URL or any other name that mmengine knows.
        prefix: As in mmengine; ``backbone.`` is found without it.
        map_location: As in :func:`torch.load`.
        min_share: The share of the backbone's entries that must be in the file.
            0 takes every entry that has the right name and shape.
    """

    def __init__(self, checkpoint: str, prefix: Optional[str] = None, map_location: Any = 'cpu',
                 min_share: float = MIN_SHARE) -> None:
        super().__init__(checkpoint, prefix, map_location)
        self.min_share = min_share

    def __call__(self, module: nn.Module) -> None:
        """Load the checkpoint into a module."""
        load_weights(module, self.checkpoint, self.prefix, self.map_location, self.min_share)
        if hasattr(module, '_params_init_info'):
            update_init_info(module, init_info=self._get_init_info())


def adapt_state_dict(backbone: RLABackbone, state_dict: Dict[str, Tensor], prefix: str,
                     local_metadata: Dict[str, Any]) -> None:
    """Give the entries of a state dict the names of a backbone, in place.

    This is the load-state-dict pre-hook of every RLA backbone. It serves
    ``init_detector``, ``DetInferencer`` and a plain ``load_state_dict``. A state dict with
    the backbone's own names, whole or partial, is left to torch.

    Args:
        backbone: The backbone that is about to load.
        state_dict: Entries outside of the backbone are left alone.
        prefix: The prefix of the backbone's entries.
        local_metadata: What the backbone saved with the entries.
    """
    names = [name for name in state_dict if name.startswith(prefix)]
    given = OrderedDict((name.removeprefix(prefix), state_dict[name]) for name in names)
    if not given or _is_partial(backbone, given):
        return
    if _is_own(backbone, given, local_metadata):
        backbone.set_new_parts(local_metadata.get('new_parts', ()))
        return
    given._metadata = {'': local_metadata}
    weights = to_ours(weights_of(given), backbone.state_dict())
    state, report = fit(backbone, weights)
    for name in names:
        del state_dict[name]
    # torch need not report the entries of new parts as missing
    own = backbone.state_dict()
    new = tuple(name for part in report.new_parts for name in part_prefixes(backbone)[part])
    state.update((name, own[name]) for name in report.initial if name.startswith(new))
    state_dict.update((prefix + name, value) for name, value in state.items())
    backbone.set_new_parts({*report.new_parts, *weights.new_parts})
    _log(report, backbone, '', weights)


def _has_own_names(backbone: RLABackbone, given: Dict[str, Tensor]) -> bool:
    """Whether all entries have names and shapes of the backbone."""
    own = backbone.state_dict()
    return all(name in own and own[name].shape == value.shape for name, value in given.items())


def _is_partial(backbone: RLABackbone, given: Dict[str, Tensor]) -> bool:
    """Whether entries are some of the backbone's own, such as its norms."""
    if not _has_own_names(backbone, given):
        return False
    parts = tuple(name for prefixes in part_prefixes(backbone).values() for name in prefixes)
    main = [name for name in backbone.state_dict()
            if not name.startswith(parts) and not is_counter(name)]
    return sum(name in given for name in main) < MIN_SHARE * len(main)


def _is_own(backbone: RLABackbone, given: Dict[str, Tensor], local_metadata: Dict[str, Any]
            ) -> bool:
    """Whether entries are those that this backbone saves."""
    update = None if backbone.rla_config is None else backbone.rla_config.update()
    return (_has_own_names(backbone, given) and not missing_parts(backbone, given)
            and local_metadata.get('rla', update) == update)
