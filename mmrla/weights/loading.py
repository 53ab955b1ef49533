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
    WARM_START,
    BackboneFit,
    LoadReport,
    examples,
    find_backbone,
    fit,
    is_counter,
)
from .layouts import Weights, to_ours, weights_of
from .reading import Metadata, metadata_of, source_of
from .sources import load_checkpoint

BY_THE_MODEL = 'renamed by the model\'s own rules'


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
        self.weights = to_ours(weights_of(state))
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
        self.state._metadata = metadata_of(state)

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
            BackboneFit(part, to_ours(_with_prefix(state, prefix)), MIN_SHARE)


def _with_moved(report: LoadReport, moved: List[str]) -> LoadReport:
    """A report that includes the entries that the model renamed by itself."""
    if not moved:
        return report
    ends = {name.split('.', 1)[-1] for name in moved}
    return LoadReport(
        report.loaded, {**report.adapted, BY_THE_MODEL: moved},
        [name for name in report.initial if name not in moved],
        [name for name in report.ignored if name.split('.', 1)[-1] not in ends])


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


def _hidden_prefixes(backbone: RLABackbone, prefix: str = '') -> Tuple[str, ...]:
    """The prefixes of the entries that a plain network does not have."""
    return tuple(f'{prefix}{name}.' for name, module in backbone.named_modules()
                 if module in backbone.hidden_path())


def _log(report: LoadReport, backbone: RLABackbone, prefix: str, weights: Weights) -> None:
    """Log the report; a warning if entries other than a new hidden path stay random."""
    is_warm_start = WARM_START in report.adapted
    hidden = _hidden_prefixes(backbone, prefix) if is_warm_start else ()
    random = [name for name in report.initial
              if not name.startswith(hidden) and not is_counter(name)]
    print_log(f'{type(backbone).__name__} from {weights.source}: {report}', logger='current',
              level=logging.WARNING if random else logging.INFO)
    if random and is_warm_start:
        print_log(f'{len(random)} of these are not in the hidden path: {examples(random)}',
                  logger='current', level=logging.WARNING)
    keeps = getattr(backbone, 'norm_eval', False) or getattr(backbone, 'frozen_stages', -1) > 0
    if is_warm_start and keeps and backbone.rla_config.pretrained:
        print_log(
            'the hidden path is new, and frozen_stages or norm_eval would keep parts of it at '
            'their initial values; set model.backbone.rla.pretrained=False to train all of it, '
            'as the *_warmstart.py configs do', logger='current', level=logging.WARNING)


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
    given._metadata = {'': local_metadata}
    if not given or _is_own(backbone, given):
        return
    weights = to_ours(weights_of(given))
    state, report = fit(backbone, weights)
    for name in names:
        del state_dict[name]
    if WARM_START in report.adapted:  # torch need not report the new hidden path as missing
        own, hidden = backbone.state_dict(), _hidden_prefixes(backbone)
        state.update((name, own[name]) for name in report.initial if name.startswith(hidden))
    state_dict.update((prefix + name, value) for name, value in state.items())
    _log(report, backbone, '', weights)


def _is_own(backbone: RLABackbone, given: Dict[str, Tensor]) -> bool:
    """Whether entries are the backbone's own, and not a plain network's for a warm start."""
    own = backbone.state_dict()
    if any(name not in own or own[name].shape != value.shape for name, value in given.items()):
        return False
    update = metadata_of(given)[''].get('rla')
    config = backbone.rla_config
    if config is None:
        return update is None
    if update is not None and update != config.update():
        return False
    hidden = _hidden_prefixes(backbone)
    if any(name.startswith(hidden) for name in given):
        return True
    main = [name for name in own if not name.startswith(hidden) and not is_counter(name)]
    return sum(name in given for name in main) < MIN_SHARE * len(main)
