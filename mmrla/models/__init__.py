"""Backbones; importing this package registers them in MMEngine's MODELS."""
from .attention import ATTENTIONS
from .cifar_resnet import RLACifarResNet
from .densenet import CifarDenseNet
from .dual_path import CifarDualPathNet
from .mobilenet_v2 import RLAMobileNetV2
from .necks import RLAPooling
from .resnet import RLAResNet, RLAResNeXt
from .rla import VARIANTS, RLAStage
from .xception import RLAXception

__all__ = ['ATTENTIONS', 'CifarDenseNet', 'CifarDualPathNet', 'RLACifarResNet', 'RLAMobileNetV2',
           'RLAPooling', 'RLAResNeXt', 'RLAResNet', 'RLAStage', 'RLAXception', 'VARIANTS']
