"""The thin Xception of the paper's CIFAR experiments, with RLA.

The table of appendix B.1 names the separable convolutions only. The paper's
parameters, 2.70 / 2.75 million for 10 / 100 classes and 2.77 / 2.81 with k = 12,
are the trainable ones (2.7019 / 2.7481 and 2.7675 / 2.8148) of this reading:

- The shortcuts are Xception's: a 1x1 convolution and a norm where the channels
  change, otherwise the identity. Only the classifier has a bias.
- h is concatenated to the input of each block's first separable convolution,
  whose depthwise part then has k more channels. The shortcuts read only x
  (2.779 if they read h).
- One recurrent convolution for each resolution. The 1x1 convolution that
  compresses y is shared as far as shapes allow: by the blocks of a resolution
  that have the same channels (2.758 if also between resolutions).

The counts do not determine the following. The text removes three of Xception's five
downsampling layers. The remaining two are at the end of the last block of the 32x32
and of the 16x16 rows. These blocks end in average pooling with a window of 3x3, as in
Xception, and have a shortcut of stride 2. As in Xception, the last group has no
shortcut: there ``x = relu(y)``.
"""
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from mmcv.cnn import build_conv_layer, build_norm_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.checks import check_choice, check_positive_int
from mmrla.models.lean.conv_norm import Term, conv_plus
from mmrla.models.rla import VARIANTS, BlockFeatures, RLAConfig, RLAStage

from .base import RLABackbone
from .blocks import RLABlock, Stage

# The other variants feed the shortcut to the hidden path; the last block has none.
XCEPTION_VARIANTS = [
    name for name, variant in VARIANTS.items() if variant.source != 'shortcut']


class SeparableConv(BaseModule):
    """A 3x3 convolution of each channel, then a 1x1 convolution of them all.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        conv_cfg: Config of the convolutions, as in mmcv.
    """

    def __init__(self, in_channels: int, out_channels: int,
                 conv_cfg: Optional[dict] = None) -> None:
        # For a depthwise convolution, torch's fan-out includes the outputs of all
        # channels. The fan-in of 9 is the one of He et al. It does not depend on
        # whether x and h are convolved together or separately.
        super().__init__(dict(type='Kaiming', layer='Conv2d', override=dict(
            type='Kaiming', name='depthwise', mode='fan_in')))
        self.depthwise = build_conv_layer(
            conv_cfg, in_channels, in_channels, 3, padding=1, groups=in_channels, bias=False)
        self.pointwise = build_conv_layer(conv_cfg, in_channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) to (N, C_out, H, W)."""
        return self.pointwise(self.depthwise(x))


class Branch(RLABlock):
    """Separable convolutions, each with its norm, and ReLUs between them.

    Args:
        in_channels: Channels of the input.
        channels: Channels after each convolution.
        relu_first: Whether a ReLU precedes the first convolution.
        stride: 2 to end in average pooling.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
    """

    def __init__(self, in_channels: int, channels: Sequence[int], relu_first: bool = True,
                 stride: int = 1, conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        self.out_channels = channels[-1]
        self.relu_first = relu_first
        self.stride = stride
        self.convs = ModuleList([
            SeparableConv(before, after, conv_cfg)
            for before, after in zip((in_channels, *channels[:-1]), channels, strict=True)])
        self.norms = ModuleList([build_norm_layer(norm_cfg, after)[1] for after in channels])
        # Not in place: x also goes into the shortcut, y into the hidden path.
        self.relu = nn.ReLU()
        self.pool = nn.Identity()
        if stride != 1:
            self.pool = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)

    def make_reader(self, channels: int, conv_cfg: Optional[dict]) -> Sequential:
        """The part of the first separable convolution of Concat(x, h) that reads h.

        Its depthwise part acts on each channel separately and its 1x1 part is
        linear. So it splits into a part of x and a part of h.
        """
        layers = [nn.ReLU()] if self.relu_first else []
        width = self.convs[0].pointwise.out_channels
        return Sequential(*layers, SeparableConv(channels, width, conv_cfg))

    def joint(self) -> Tuple[nn.Module, nn.Module]:
        """The first 1x1 convolution, and its norm."""
        return self.convs[0].pointwise, self.norms[0]

    def residual(self, x: Tensor, term: Optional[Term]) -> Tensor:
        """y, of shape (N, C, H', W')."""
        r = self.relu(x) if self.relu_first else x
        y = self.norms[0](conv_plus(self.convs[0], r, term))
        for conv, norm in zip(self.convs[1:], self.norms[1:], strict=True):
            y = norm(conv(self.relu(y)))
        return self.pool(y)


class XceptionBlock(Branch):
    """A branch and its shortcut; for the arguments see :class:`Branch`."""

    def __init__(self, in_channels: int, channels: Sequence[int], relu_first: bool = True,
                 stride: int = 1, conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__(in_channels, channels, relu_first, stride, conv_cfg, norm_cfg)
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != self.out_channels:
            self.shortcut = Sequential(
                build_conv_layer(conv_cfg, in_channels, self.out_channels, 1, stride=stride,
                                 bias=False),
                build_norm_layer(norm_cfg, self.out_channels)[1])

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block; for the arguments see :class:`RLABlock`."""
        y = self.residual(x, term)
        shortcut = self.shortcut(x)
        return BlockFeatures(y, shortcut, y + shortcut)


class ExitBlock(Branch):
    """The last convolutions, without a shortcut; see :class:`Branch`."""

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block; for the arguments see :class:`RLABlock`."""
        y = self.residual(x, term)
        return BlockFeatures(y, None, self.relu(y))


class Group(NamedTuple):
    """Blocks of one resolution and one number of channels.

    Attributes:
        resolution: 0, 1 and 2 for the rows 32x32, 16x16 and 8x8 of the table.
        blocks: The blocks, which share the convolution that compresses y.
    """
    resolution: int
    blocks: Stage


@MODELS.register_module()
class RLAXception(RLABackbone):
    """Thin Xception for small images, with recurrent layer aggregation.

    Args:
        in_channels: Channels of the image.
        base_channels: Channels of the first convolution; all others are
            multiples of it. 16 in the paper.
        num_middle: Blocks of three separable convolutions. 8 in the paper.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, those of the hidden path included.
        rla: ``dict(channels=12, variant='v1')``, see
            :class:`~mmrla.models.rla.RLAConfig`; None for a plain Xception.
            The variants v5 and v6 are not supported: the last block has no
            shortcut.
        out_hidden: Return the last hidden state after x, for a classifier,
            which applies its own norm and ReLU.
        init_cfg: As in mmengine. The default is that of He et al.

    Example:
        >>> import torch
        >>> from mmrla.models import RLAXception
        >>> backbone = RLAXception(rla=dict(channels=12), out_hidden=True).eval()
        >>> for out in backbone(torch.rand(1, 3, 32, 32)):
        ...     print(tuple(out.shape))
        (1, 512, 8, 8)
        (1, 12, 8, 8)
    """

    def __init__(self,
                 in_channels: int = 3,
                 base_channels: int = 16,
                 num_middle: int = 8,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 rla: Optional[Dict[str, Any]] = dict(channels=12, variant='v1'),
                 out_hidden: bool = False,
                 init_cfg: Union[dict, List[dict], None] = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])
                 ]) -> None:
        super().__init__(init_cfg)
        check_positive_int('in_channels', in_channels)
        check_positive_int('base_channels', base_channels)
        check_positive_int('num_middle', num_middle)
        config = RLAConfig.parse(rla)
        if config is not None:
            check_choice('rla.variant', config.variant, XCEPTION_VARIANTS)
            config.check_reaches_output(out_hidden)
        if out_hidden and config is None:
            raise ValueError('out_hidden=True needs a hidden state: set rla=dict(...)')
        self.out_hidden = out_hidden
        layers = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg)
        stem = []
        for before, after in ((in_channels, base_channels), (base_channels, 2 * base_channels)):
            stem += [build_conv_layer(conv_cfg, before, after, 3, padding=1, bias=False),
                     build_norm_layer(norm_cfg, after)[1], nn.ReLU(inplace=True)]
        self.stem = Sequential(*stem)
        groups = self._make_groups(base_channels, num_middle, layers)
        self.groups = ModuleList([group.blocks for group in groups])
        self.feat_dim = 32 * base_channels
        self.rla = None
        if config is not None:
            self.rla = self._make_hidden_path(groups, config, layers)

    @staticmethod
    def _make_groups(base: int, num_middle: int, layers: Dict[str, Any]) -> List[Group]:
        """The rows of the paper's table."""
        c64, c128, c256, c512 = (base * factor for factor in (4, 8, 16, 32))
        middle = [XceptionBlock(c256, [c256] * 3, **layers) for _ in range(num_middle)]
        return [
            Group(0, Stage(XceptionBlock(base * 2, [c64] * 2, relu_first=False, **layers))),
            Group(0, Stage(XceptionBlock(c64, [c128] * 2, **layers))),
            Group(0, Stage(XceptionBlock(c128, [c256] * 2, stride=2, **layers))),
            Group(1, Stage(*middle)),
            Group(1, Stage(XceptionBlock(c256, [c256, c512], stride=2, **layers))),
            Group(2, Stage(ExitBlock(c512, [c512] * 2, relu_first=False, **layers))),
        ]

    def _make_hidden_path(self, groups: Sequence[Group], config: RLAConfig,
                          layers: Dict[str, Any]) -> ModuleList:
        """The hidden path, one part for each group."""
        hidden = ModuleList()
        k, conv_cfg = config.channels, layers['conv_cfg']
        recurrent = [build_conv_layer(conv_cfg, k, k, 3, padding=1, bias=False)
                     for _ in range(groups[-1].resolution + 1)]
        for group in groups:
            is_last = group is groups[-1]
            hidden.append(RLAStage(
                readers=[block.make_reader(k, conv_cfg) for block in group.blocks],
                feature_channels=group.blocks[0].out_channels,
                stride=group.blocks[0].stride,
                num_updates=len(group.blocks) - (is_last and not self.out_hidden),
                config=config,
                recurrent=recurrent[group.resolution],
                **layers))
        return hidden

    def stages_with_blocks(self) -> List[nn.Module]:
        """The groups of blocks."""
        return list(self.groups)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size.

        Returns:
            tuple[Tensor]: x of shape (N, C, H/4, W/4); with ``out_hidden`` also
            the last hidden state, (N, k, H/4, W/4).
        """
        x = self.stem(x)
        state = None
        for i, blocks in enumerate(self.groups):
            x, state = self._run_stage(i, blocks, x, state)
        return (x, state[0]) if self.out_hidden else (x,)
