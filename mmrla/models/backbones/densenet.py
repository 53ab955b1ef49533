"""DenseNet-BC for CIFAR, with the paper's two ways of sharing its 1x1 convolutions.

Layer t of a dense block computes (equation 3)::

    x^t = Conv3^t(Conv1^t(Concat(x^0, ..., x^{t-1}))) = Conv3^t(sum_l Conv1^t_l(x^l))

Each Conv is BN-ReLU-Conv. In section 3.2, ``Conv1^t_l`` depends only on the lag t - l
(Shared-Lag, equation 9) or only on the ordinal number l (Shared-Ordinal, equation 10),
for all l except 0. The points that the paper leaves open are
resolved as follows:

- ``x^0`` has 3 + 2k channels: the image is concatenated with the stem's output.
- The convolution is shared, a norm is not: the outputs of different layers have
  different statistics. Each ``x^l`` is normalised once, for all layers that read
  it; ``x^0``, whose convolutions stay each layer's own, once for each of them.

With the moving statistics, which Keras also counts, this has 797,187 values without
sharing and 600,627 with it: the 0.80 M and 0.60 M that the paper prints. A norm
for each pair of layers would give 0.616 M.
"""
from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.checks import check_choice, check_positive_int

from .base import RLABackbone

SHARINGS = ('lag', 'ordinal')
NUM_BLOCKS = 3


class NormReLUConv(BaseModule):
    """A "conv" of the paper: norm, ReLU and convolution.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Odd.
        norm_cfg: Config of the norm, as in mmcv.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int,
                 norm_cfg: dict) -> None:
        super().__init__()
        self.norm = build_norm_layer(norm_cfg, in_channels)[1]
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size,
                              padding=kernel_size // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) to (N, C_out, H, W)."""
        return self.conv(F.relu(self.norm(x)))


class SharedConv1(BaseModule):
    """``Conv1_1, Conv1_2, ...`` of equations 9 and 10, shared by a dense block.

    Args:
        num_layers: Layers of the block. No layer reads the output of the last one.
        growth: k, the channels of a layer's output.
        sharing: ``'lag'`` or ``'ordinal'``.
        norm_cfg: Config of the norms, as in mmcv.
    """

    def __init__(self, num_layers: int, growth: int, sharing: str, norm_cfg: dict) -> None:
        super().__init__()
        count = num_layers - 1
        self.growth = growth
        self.by_lag = sharing == 'lag'
        self.norms = ModuleList([build_norm_layer(norm_cfg, growth)[1] for _ in range(count)])
        self.conv = nn.Conv2d(count * growth, 4 * growth, 1, bias=False)

    def activate(self, features: Tensor, ordinal: int) -> Tensor:
        """The norm and ReLU of ``x^l``, l = ``ordinal``."""
        return F.relu(self.norms[ordinal - 1](features))

    def forward(self, activated: Sequence[Tensor]) -> Tensor:
        """The sum over l of ``Conv1_{t-l}(x^l)``, or of ``Conv1_l(x^l)``.

        Args:
            activated: ``x^1`` to ``x^{t-1}`` after norm and ReLU, each of
                shape (N, k, H, W).

        Returns:
            Tensor: Shape (N, 4k, H, W).
        """
        ordered = activated[::-1] if self.by_lag else activated
        weight = self.conv.weight[:, :len(ordered) * self.growth]
        return F.conv2d(torch.cat(ordered, 1), weight)

    def weights(self) -> Tensor:
        """The kernels by lag or ordinal number, (L - 1, 4k, k)."""
        return self.conv.weight[..., 0, 0].unflatten(1, (-1, self.growth)).transpose(0, 1)


class DenseBlock(BaseModule):
    """The layers of one resolution.

    Args:
        in_channels: Channels of ``x^0``.
        num_layers: L.
        growth: k.
        sharing: None, ``'lag'`` or ``'ordinal'``.
        norm_cfg: Config of the norms, as in mmcv.
    """

    def __init__(self, in_channels: int, num_layers: int, growth: int, sharing: Optional[str],
                 norm_cfg: dict) -> None:
        super().__init__()
        own = [in_channels + (0 if sharing else t * growth) for t in range(num_layers)]
        self.conv1 = ModuleList([NormReLUConv(c, 4 * growth, 1, norm_cfg) for c in own])
        self.conv3 = ModuleList(
            [NormReLUConv(4 * growth, growth, 3, norm_cfg) for _ in range(num_layers)])
        self.shared = SharedConv1(num_layers, growth, sharing, norm_cfg) if sharing else None
        self.out_channels = in_channels + num_layers * growth

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C + L k, H, W), ``Concat(x^0, ..., x^L)``."""
        if self.shared is None:
            for conv1, conv3 in zip(self.conv1, self.conv3, strict=True):
                x = torch.cat([x, conv3(conv1(x))], 1)
            return x
        features, activated = [x], []
        for t, (conv1, conv3) in enumerate(zip(self.conv1, self.conv3, strict=True)):
            if t:
                activated.append(self.shared.activate(features[t], t))
            aggregated = self.shared(activated) if t else 0
            features.append(conv3(conv1(x) + aggregated))
        return torch.cat(features, 1)


@MODELS.register_module()
class CifarDenseNet(RLABackbone):
    """DenseNet-BC for small images, with optionally shared 1x1 convolutions.

    Args:
        depth: 6n + 4, for n layers in each of three dense blocks; 100 in the
            paper.
        growth: k, the channels that a layer adds; 12 in the paper.
        sharing: None for DenseNet, ``'lag'`` for equation 9, ``'ordinal'`` for
            equation 10.
        in_channels: Channels of the image.
        compression: Ratio of the output channels of a transition to its input.
        norm_cfg: Config of the norms, as in mmcv.
        init_cfg: As in mmengine. The default is that of He et al.

    Example:
        >>> import torch
        >>> from mmrla.models import CifarDenseNet
        >>> backbone = CifarDenseNet(depth=22, sharing='lag').eval()
        >>> backbone(torch.rand(1, 3, 32, 32))[0].shape
        torch.Size([1, 69, 8, 8])
    """

    def __init__(self,
                 depth: int = 100,
                 growth: int = 12,
                 sharing: Optional[str] = None,
                 in_channels: int = 3,
                 compression: float = 0.5,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Union[dict, List[dict], None] = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])
                 ]) -> None:
        super().__init__(init_cfg)
        for name, value in (('depth', depth), ('growth', growth), ('in_channels', in_channels)):
            check_positive_int(name, value)
        check_choice('sharing', sharing, (None, *SHARINGS))
        if not 0 < compression <= 1:
            raise ValueError(f'compression={compression!r} must be above 0 and at most 1')
        num_layers, rest = divmod(depth - 4, 2 * NUM_BLOCKS)
        if num_layers < 2 or rest:
            raise ValueError(f'depth={depth} is not 6n + 4 with n of 2 or more (16, 22, 40, 100)')
        self.rla = None
        self.stem = nn.Conv2d(in_channels, 2 * growth, 3, padding=1, bias=False)
        channels = in_channels + 2 * growth
        self.blocks, self.transitions = ModuleList(), ModuleList()
        for i in range(NUM_BLOCKS):
            self.blocks.append(DenseBlock(channels, num_layers, growth, sharing, norm_cfg))
            channels = self.blocks[-1].out_channels
            if i < NUM_BLOCKS - 1:
                narrow = int(channels * compression)
                self.transitions.append(Sequential(
                    NormReLUConv(channels, narrow, 1, norm_cfg), nn.AvgPool2d(2)))
                channels = narrow
        self.final = Sequential(build_norm_layer(norm_cfg, channels)[1], nn.ReLU(inplace=True))
        self.feat_dim = channels

    def forward(self, x: Tensor) -> Tuple[Tensor]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of 4 or more.

        Returns:
            tuple[Tensor]: One feature map, (N, C, H // 4, W // 4).
        """
        x = torch.cat([x, self.stem(x)], 1)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < len(self.transitions):
                x = self.transitions[i](x)
        return (self.final(x),)
