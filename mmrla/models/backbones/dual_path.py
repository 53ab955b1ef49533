"""The dual path network that the paper compares with on CIFAR (appendix B.4).

A dual path network (Chen et al., 2017) corresponds to RLA without recurrence: it has a
residual path and a dense path. Every block adds k channels to the dense path, and
every block reads all of them. The appendix only says that ResNet-164 was modified in
this way. By the definition of Chen et al., with 2k channels at the start of the dense
path of a stage, ResNet-164 with k = 12 has 2.128 million parameters; the paper prints
2.13.
"""
from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmcv.cnn import build_conv_layer, build_norm_layer
from mmengine.model import ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.checks import check_positive_int

from .base import RLABackbone
from .cifar_resnet import STRIDES, PreActBottleneck


class DualPathBlock(PreActBottleneck):
    """A bottleneck whose last convolution has k more channels.

    Args:
        in_channels: Channels of the residual and the dense path together.
        width: The residual path has four times as many channels.
        growth: k, the channels that the block adds to the dense path.
        stride: Stride of the block.
        is_first: Whether the block is the first of a stage. Then both paths are
            projected, to 4 * width and 2k channels.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
    """

    def __init__(self, in_channels: int, width: int, growth: int, stride: int = 1,
                 is_first: bool = False, conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__(in_channels, width, stride, conv_cfg, norm_cfg)
        self.residual_channels = width * self.expansion
        self.convs[-1] = build_conv_layer(
            conv_cfg, width, self.residual_channels + growth, 1, bias=False)
        self.shortcut = None
        if is_first:
            self.shortcut = build_conv_layer(
                conv_cfg, in_channels, self.residual_channels + 2 * growth, 1, stride=stride,
                bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block.

        Args:
            x: Both paths, the residual one first, shape (N, C + D, H, W).

        Returns:
            Tensor: Shape (N, C' + D', H', W').
        """
        y = self.residual(x, None)
        before = x if self.shortcut is None else self.shortcut(x)
        c = self.residual_channels
        return torch.cat([before[:, :c] + y[:, :c], before[:, c:], y[:, c:]], 1)


@MODELS.register_module()
class CifarDualPathNet(RLABackbone):
    """A pre-activated bottleneck ResNet for small images with a dense path.

    Args:
        depth: 9n + 2, for n blocks in each of three stages; 164 in the paper.
        growth: k; 12 in the paper.
        in_channels: Channels of the image.
        base_channels: Channels of the stem; a stage has once, twice and four
            times as many, before expansion.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        init_cfg: As in mmengine. The default is that of He et al.

    Example:
        >>> import torch
        >>> from mmrla.models import CifarDualPathNet
        >>> backbone = CifarDualPathNet(depth=29).eval()
        >>> backbone(torch.rand(1, 3, 32, 32))[0].shape
        torch.Size([1, 316, 8, 8])
    """

    def __init__(self,
                 depth: int = 164,
                 growth: int = 12,
                 in_channels: int = 3,
                 base_channels: int = 16,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Union[dict, List[dict], None] = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])
                 ]) -> None:
        super().__init__(init_cfg)
        for name, value in (('depth', depth), ('growth', growth), ('in_channels', in_channels),
                            ('base_channels', base_channels)):
            check_positive_int(name, value)
        num_blocks, rest = divmod(depth - 2, len(STRIDES) * DualPathBlock.depth)
        if num_blocks < 1 or rest:
            raise ValueError(f'depth={depth} is not 9n + 2 (29, 47, 164)')
        self.rla = None
        layers = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg)
        self.stem = Sequential(
            build_conv_layer(conv_cfg, in_channels, base_channels, 3, padding=1, bias=False),
            build_norm_layer(norm_cfg, base_channels)[1], nn.ReLU(inplace=True))
        self.stages = ModuleList()
        channels = base_channels
        for i, stride in enumerate(STRIDES):
            stage, channels = self._make_stage(
                channels, base_channels * 2**i, growth, num_blocks, stride, layers)
            self.stages.append(stage)
        self.feat_dim = channels
        self.final = Sequential(build_norm_layer(norm_cfg, channels)[1], nn.ReLU(inplace=True))

    @staticmethod
    def _make_stage(in_channels: int, width: int, growth: int, num_blocks: int, stride: int,
                    layers: dict) -> Tuple[Sequential, int]:
        """The blocks of a stage, and the channels of both paths after it."""
        blocks = [DualPathBlock(in_channels, width, growth, stride, is_first=True, **layers)]
        channels = blocks[0].residual_channels + 3 * growth
        for _ in range(1, num_blocks):
            blocks.append(DualPathBlock(channels, width, growth, **layers))
            channels += growth
        return Sequential(*blocks), channels

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size.

        Returns:
            tuple[Tensor]: Both paths after the last stage, (N, C + D, H', W').
        """
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return (self.final(x),)
