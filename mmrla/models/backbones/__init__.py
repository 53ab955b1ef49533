"""Backbones; importing this package registers them in MMEngine's MODELS."""
from .cifar_resnet import RLACifarResNet
from .densenet import CifarDenseNet
from .dual_path import CifarDualPathNet
from .mobilenet_v2 import RLAMobileNetV2
from .resnet import RLAResNet, RLAResNetV1c, RLAResNetV1d
from .resnext import RLAResNeXt
from .xception import RLAXception

__all__ = ['CifarDenseNet', 'CifarDualPathNet', 'RLACifarResNet', 'RLAMobileNetV2', 'RLAResNeXt',
           'RLAResNet', 'RLAResNetV1c', 'RLAResNetV1d', 'RLAXception']
