"""Backbones; importing this package registers them in MMEngine's MODELS."""
from .attention import ATTENTIONS
from .resnet import RLAResNet, RLAResNeXt
from .rla import VARIANTS, RLAStage

__all__ = ['ATTENTIONS', 'RLAResNeXt', 'RLAResNet', 'RLAStage', 'VARIANTS']
