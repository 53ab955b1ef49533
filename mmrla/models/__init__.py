"""Models; importing this package registers them in MMEngine's MODELS."""
from .backbones import (
    CifarDenseNet,
    CifarDualPathNet,
    RLACifarResNet,
    RLAMobileNetV2,
    RLAResNet,
    RLAResNetV1c,
    RLAResNetV1d,
    RLAResNeXt,
    RLAXception,
)
from .layers.attention import ATTENTIONS
from .layers.necks import RLAPooling
from .rla import VARIANTS, RLAStage
from .with_rla import WithRLA

__all__ = ['ATTENTIONS', 'CifarDenseNet', 'CifarDualPathNet', 'RLACifarResNet', 'RLAMobileNetV2',
           'RLAPooling', 'RLAResNeXt', 'RLAResNet', 'RLAResNetV1c', 'RLAResNetV1d', 'RLAStage',
           'RLAXception', 'VARIANTS', 'WithRLA']
