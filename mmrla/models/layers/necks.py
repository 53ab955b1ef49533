"""What stands between an RLA backbone and a classifier."""
from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class RLAPooling(BaseModule):
    """The RLA output for classification (paper, section 3.3, guideline 4).

    The last hidden state goes through a norm and a ReLU, is concatenated
    behind the last feature map, and both are pooled globally. For a backbone
    with ``out_hidden=True``, in the place of ``GlobalAveragePooling``.

    Args:
        channels: k, the channels of h.
        norm_cfg: Config of the norm, as in mmcv. None leaves out the norm and
            the ReLU, as the paper's post-activated and ConvLSTM forms do.
        init_cfg: As in mmengine.
    """

    def __init__(self,
                 channels: int,
                 norm_cfg: Optional[dict] = dict(type='BN', requires_grad=True),
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        self.norm = None if norm_cfg is None else build_norm_layer(norm_cfg, channels)[1]

    def forward(self, inputs: Sequence[Tensor]) -> Tuple[Tensor]:
        """Pool the backbone's last two outputs.

        Args:
            inputs: The backbone's outputs, the last two of shapes
                (N, C, H, W), the last stage's, and (N, k, H, W), h.

        Returns:
            tuple[Tensor]: One tensor of shape (N, C + k), what a classifier's
            head takes.
        """
        x, h = inputs[-2:]
        if self.norm is not None:
            h = F.relu(self.norm(h))
        pooled = [F.adaptive_avg_pool2d(feature, 1).flatten(1) for feature in (x, h)]
        return (torch.cat(pooled, 1),)
