"""Weights for a backbone through the usual ``init_cfg=dict(type='Pretrained')``.

mmengine's own initialiser loads what happens to have the same name and says
nothing clear about the rest. For mmrla's backbones this one takes the backbone
out of a classifier's or a detector's checkpoint, stops on a file that does not
fit, and reports what it did. Other modules are loaded as ever.
"""
import logging
from typing import Dict, List, NamedTuple

from mmengine.logging import print_log
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from .models import RLACifarResNet, RLAMobileNetV2, RLAResNet, RLAXception

BACKBONES = (RLAResNet, RLAMobileNetV2, RLACifarResNet, RLAXception)
# Of a backbone's entries at least this share must come from the file.
MIN_SHARE = 0.5


class LoadReport(NamedTuple):
    """What became of the entries of a file and of a backbone.

    Attributes:
        loaded: Entries that the backbone took from the file.
        initial: Entries of the backbone that the file does not have.
        ignored: Entries of the file that the backbone does not have.
    """
    loaded: List[str]
    initial: List[str]
    ignored: List[str]

    def __str__(self) -> str:
        parts = [f'{len(self.loaded)} entries loaded']
        for names, what in ((self.initial, 'left at their initial values'),
                            (self.ignored, 'of the file ignored')):
            if names:
                examples = ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')
                parts.append(f'{len(names)} {what} ({examples})')
        return '; '.join(parts)


def weights_of(checkpoint: Dict) -> Dict[str, Tensor]:
    """The weights in a checkpoint, whoever saved it, without DDP's prefix."""
    state = checkpoint
    for key in ('state_dict', 'model'):
        if isinstance(checkpoint.get(key), dict):
            state = checkpoint[key]
            break
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if state and all(name.startswith('module.') for name in state):
        state = {name.removeprefix('module.'): value for name, value in state.items()}
    return state


def load_backbone(backbone: nn.Module, filename: str, map_location: str = 'cpu') -> LoadReport:
    """Load a backbone's weights from a checkpoint of it or of a model around it.

    Args:
        backbone: Left as it was if the file does not fit.
        filename: A path, a URL or any other name that mmengine knows.
        map_location: As in :func:`torch.load`.

    Returns:
        LoadReport: What became of all entries.
    """
    state = weights_of(CheckpointLoader.load_checkpoint(filename, map_location))
    own = backbone.state_dict()
    outside = []
    if any(name.startswith('backbone.') for name in state):
        outside = [name for name in state if not name.startswith('backbone.')]
        state = {name.removeprefix('backbone.'): value for name, value in state.items()
                 if name not in outside}
    for name in own.keys() & state.keys():
        if own[name].shape != state[name].shape:
            raise ValueError(
                f'checkpoint {filename} is of another network: {name} has shape '
                f'{tuple(state[name].shape)} there and {tuple(own[name].shape)} in '
                f'{type(backbone).__name__}; check depth, channels and groups')
    loaded = [name for name in own if name in state]
    report = LoadReport(loaded, [name for name in own if name not in state],
                        [name for name in state if name not in own] + outside)
    if len(loaded) < MIN_SHARE * len(own):
        raise ValueError(f'checkpoint {filename} hardly fits {type(backbone).__name__}: {report}')
    backbone.load_state_dict({name: state[name] for name in loaded}, strict=False)
    return report


@WEIGHT_INITIALIZERS.register_module(name='Pretrained', force=True)
class BackboneInit(PretrainedInit):
    """mmengine's ``Pretrained``, which knows mmrla's backbones.

    Args:
        checkpoint: A path, a URL or any other name that mmengine knows.
        prefix: As in mmengine; a backbone needs none.
        map_location: As in :func:`torch.load`.
    """

    def __call__(self, module: nn.Module) -> None:
        """Load the weights into a module."""
        if self.prefix is not None or not isinstance(module, BACKBONES):
            super().__call__(module)
            return
        report = load_backbone(module, self.checkpoint, self.map_location)
        level = logging.WARNING if report.initial else logging.INFO
        print_log(f'{type(module).__name__} from {self.checkpoint}: {report}',
                  logger='current', level=level)
