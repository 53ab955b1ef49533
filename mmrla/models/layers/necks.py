"""The neck between an RLA backbone and the head of a classifier."""
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from .checks import check_choice

ACTIVATIONS = dict(relu=torch.relu, tanh=torch.tanh)


@MODELS.register_module()
class RLAPooling(BaseModule):
    """The RLA output for classification (paper, section 3.3, guideline 4).

    A norm and an activation are applied to the last hidden state. The last feature map
    and the hidden state are pooled globally and concatenated. It replaces
    ``GlobalAveragePooling`` after a backbone with ``out_hidden=True``.

    The paper's text mentions neither the norm nor the activation. The authors' code
    has both: ReLU in the classes that build its networks, tanh in the file of the
    ablation of v1. A checkpoint does not record which of the two it was trained with;
    docs/paper_notes.md describes how to find out.

    Args:
        channels: k, the channels of h.
        norm_cfg: Config of the norm, as in mmcv. None omits the norm and the
            activation, as the authors' code does in its post-activated, ConvLSTM
            and ConvGRU forms.
        activation: ``'relu'`` or ``'tanh'``, applied after the norm.
        init_cfg: As in mmengine.
    """

    def __init__(self,
                 channels: int,
                 norm_cfg: Optional[dict] = dict(type='BN', requires_grad=True),
                 activation: str = 'relu',
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        check_choice('activation', activation, ACTIVATIONS)
        self.activation = ACTIVATIONS[activation]
        self.norm = None if norm_cfg is None else build_norm_layer(norm_cfg, channels)[1]

    def forward(self, inputs: Sequence[Tensor]) -> Tuple[Tensor]:
        """Pool the backbone's last two outputs.

        Args:
            inputs: The backbone's outputs, the last two of shapes
                (N, C, H, W), of the last stage, and (N, k, H, W), h.

        Returns:
            tuple[Tensor]: One tensor of shape (N, C + k), the input of a
            classifier's head.
        """
        x, h = inputs[-2:]
        if self.norm is not None:
            h = self.activation(self.norm(h))
        pooled = [F.adaptive_avg_pool2d(feature, 1).flatten(1) for feature in (x, h)]
        return (torch.cat(pooled, 1),)
