"""The pre-activated ResNets of the paper's CIFAR experiments, with RLA.

The tables of ResNet-110 and ResNet-164 (appendix B.1) leave some points open. They are
resolved as follows, where k is the number of channels of h:

- Every "conv" except the first is BN-ReLU-Conv, and ``Concat(x, h)`` is the input of
  the residual unit (figure 3): the norm of a block's first convolution also acts on
  h. In millions of parameters, ResNet-164 with k = 8 / 12 / 16 / 24 then has
  1.727 / 1.739 / 1.753 / 1.783 (paper: 1.73 / 1.74 / 1.75 / 1.78). A norm on x
  alone would give 0.001 to 0.003 less, which two digits do not show.
- A shortcut that changes the shape is a 1x1 convolution of x alone: if it read
  h too, k = 24 would give 1.794. It reads x itself, before norm and ReLU.
- A bottleneck has its stride in the 3x3 convolution, as in
  :class:`~mmrla.models.backbones.resnet.RLAResNet`.
"""
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

from mmcv.cnn import build_conv_layer, build_norm_layer
from mmengine.model import ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.checks import check_choice, check_extra_channels, check_positive_int
from mmrla.models.lean.conv_norm import Term, conv_plus
from mmrla.models.rla import BlockFeatures, RLAConfig, RLAStage, reader_like

from .base import RLABackbone
from .blocks import RLABlock, Stage

STRIDES = (1, 2, 2)


class PreActBasicBlock(RLABlock):
    """Two 3x3 convolutions, each after its norm and ReLU.

    Args:
        in_channels: Channels of the input.
        width: The output has ``expansion`` times as many channels.
        stride: Stride of the block.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
    """
    expansion = 1
    depth = 2

    def __init__(self, in_channels: int, width: int, stride: int = 1,
                 conv_cfg: Optional[dict] = None, norm_cfg: dict = dict(type='BN')) -> None:
        super().__init__()
        channels = width * self.expansion
        self.convs = ModuleList([
            build_conv_layer(conv_cfg, before, after, size, stride=step, padding=size // 2,
                             bias=False)
            for before, after, size, step in self.shapes(in_channels, width, stride)])
        self.norms = ModuleList(
            [build_norm_layer(norm_cfg, conv.in_channels)[1] for conv in self.convs])
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or in_channels != channels:
            self.shortcut = build_conv_layer(
                conv_cfg, in_channels, channels, 1, stride=stride, bias=False)

    @staticmethod
    def shapes(in_channels: int, width: int, stride: int) -> List[Tuple[int, int, int, int]]:
        """Input and output channels, size and stride of each convolution."""
        return [(in_channels, width, 3, stride), (width, width, 3, 1)]

    def residual(self, x: Tensor, term: Optional[Term]) -> Tensor:
        """y, of shape (N, C, H', W')."""
        y = conv_plus(self.convs[0], self.relu(self.norms[0](x)), term)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            y = conv(self.relu(norm(y)))
        return y

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block; for the arguments see :class:`RLABlock`."""
        y = self.residual(x, term)
        shortcut = x if self.shortcut is None else self.shortcut(x)
        # With pre-activation no layer follows the sum (He et al., 2016).
        return BlockFeatures(y, shortcut, y + shortcut)

    def joint(self) -> Tuple[nn.Module, nn.Module]:
        """The first convolution, and the norm of the second."""
        return self.convs[0], self.norms[1]


class PreActBottleneck(PreActBasicBlock):
    """1x1, 3x3 and 1x1 convolution; for the arguments see the base class."""
    expansion = 4
    depth = 3

    @staticmethod
    def shapes(in_channels: int, width: int, stride: int) -> List[Tuple[int, int, int, int]]:
        """Input and output channels, size and stride of each convolution."""
        return [(in_channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]


@MODELS.register_module()
class RLACifarResNet(RLABackbone):
    """Pre-activated ResNet for small images, with recurrent layer aggregation.

    Args:
        depth: 6n + 2 with basic blocks (20, 32, 44, 56, 110), 9n + 2 with
            bottlenecks (29, 47, 164), for n blocks in each of three stages.
        bottleneck: The kind of block. By default, as in the paper, bottlenecks
            for a depth of 164 or more and basic blocks below.
        in_channels: Channels of the image.
        base_channels: Channels of the stem; a stage has once, twice and four
            times as many, before expansion.
        extra_channels: Added to the width of every stage, before expansion. 3
            gives the "channel+12" ResNet-164 of the paper's ablation.
        out_indices: Stages whose output is returned. Later stages are not
            built. A final norm and ReLU follow the last output.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, those of the hidden path included.
        rla: ``dict(channels=12, variant='v1')``, see
            :class:`~mmrla.models.rla.RLAConfig`; None for a plain ResNet. The
            paper uses 12 channels in ResNet-164 and 4 in ResNet-110.
        out_hidden: Return the last hidden state after the outputs of the
            stages, for a classifier, which applies its own norm and ReLU.
        init_cfg: As in mmengine. The default is that of He et al.

    Example:
        >>> import torch
        >>> from mmrla.models import RLACifarResNet
        >>> backbone = RLACifarResNet(depth=20, rla=dict(channels=4), out_hidden=True).eval()
        >>> for out in backbone(torch.rand(1, 3, 32, 32)):
        ...     print(tuple(out.shape))
        (1, 64, 8, 8)
        (1, 4, 8, 8)
    """

    def __init__(self,
                 depth: int,
                 bottleneck: Optional[bool] = None,
                 in_channels: int = 3,
                 base_channels: int = 16,
                 extra_channels: int = 0,
                 out_indices: Sequence[int] = (2,),
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 rla: Optional[Dict[str, Any]] = dict(channels=12, variant='v1'),
                 out_hidden: bool = False,
                 init_cfg: Union[dict, List[dict], None] = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])
                 ]) -> None:
        super().__init__(init_cfg)
        self._check(in_channels, base_channels, extra_channels, out_indices)
        self.block, num_blocks = self._arch(depth, bottleneck)
        config = RLAConfig.parse(rla)
        if out_hidden and config is None:
            raise ValueError('out_hidden=True needs a hidden state: set rla=dict(...)')
        if config is not None:
            config.check_reaches_output(out_hidden)
        self.out_indices = out_indices
        self.out_hidden = out_hidden
        layers = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg)
        self.stem = Sequential(
            build_conv_layer(conv_cfg, in_channels, base_channels, 3, padding=1, bias=False),
            build_norm_layer(norm_cfg, base_channels)[1], nn.ReLU(inplace=True))
        widths = [base_channels * 2**i + extra_channels for i in range(max(out_indices) + 1)]
        self.stages = self._make_stages(base_channels, widths, num_blocks, layers)
        self.feat_dim = widths[-1] * self.block.expansion
        self.final = Sequential(build_norm_layer(norm_cfg, self.feat_dim)[1],
                                nn.ReLU(inplace=True))
        self.rla = None
        if config is not None:
            self.rla = self._make_hidden_path(config, layers)

    @staticmethod
    def _check(in_channels, base_channels, extra_channels, out_indices) -> None:
        """Raise an error for values that cannot be built."""
        check_positive_int('in_channels', in_channels)
        check_positive_int('base_channels', base_channels)
        check_extra_channels(extra_channels)
        if not out_indices:
            raise ValueError(f'out_indices={out_indices!r} must name at least one stage')
        for index in out_indices:
            check_choice('an entry of out_indices', index, range(len(STRIDES)))

    @staticmethod
    def _arch(depth: int, bottleneck: Optional[bool]) -> Tuple[Type[PreActBasicBlock], int]:
        """The kind of block, and the number of blocks of a stage."""
        check_positive_int('depth', depth)
        check_choice('bottleneck', bottleneck, (None, True, False))
        # 110 and 164 are both 6n + 2 and 9n + 2.
        is_bottleneck = depth >= 164 if bottleneck is None else bottleneck
        block = PreActBottleneck if is_bottleneck else PreActBasicBlock
        num_blocks, rest = divmod(depth - 2, len(STRIDES) * block.depth)
        if num_blocks < 1 or rest:
            raise ValueError(f'depth={depth} with bottleneck={bottleneck}: choose a depth of '
                             '6n + 2 (20, 110) with basic blocks, 9n + 2 (29, 164) with '
                             'bottleneck=True')
        return block, num_blocks

    def _make_stages(self, in_channels: int, widths: Sequence[int], num_blocks: int,
                     layers: Dict[str, Any]) -> ModuleList:
        """The blocks of all stages."""
        stages = ModuleList()
        for width, stride in zip(widths, STRIDES, strict=False):
            channels = width * self.block.expansion
            blocks = [self.block(in_channels, width, stride, **layers)]
            blocks += [self.block(channels, width, **layers) for _ in range(1, num_blocks)]
            stages.append(Stage(*blocks))
            in_channels = channels
        return stages

    def _make_hidden_path(self, config: RLAConfig, layers: Dict[str, Any]) -> ModuleList:
        """The hidden path, one part for each stage."""
        hidden = ModuleList()
        for i, blocks in enumerate(self.stages):
            is_last = i == len(self.stages) - 1
            hidden.append(RLAStage(
                readers=[self._make_reader(block, config.channels, **layers) for block in blocks],
                feature_channels=blocks[-1].convs[-1].out_channels,
                stride=STRIDES[i],
                num_updates=len(blocks) - (is_last and not self.out_hidden),
                config=config,
                **layers))
        return hidden

    def stages_with_blocks(self) -> List[nn.Module]:
        """The three stages."""
        return list(self.stages)

    @staticmethod
    def _make_reader(block: PreActBasicBlock, channels: int, conv_cfg: Optional[dict],
                     norm_cfg: dict) -> Sequential:
        """The part of conv(relu(norm(Concat(x, h)))) that reads h.

        A batch norm and a ReLU act on each channel separately, and a convolution is
        linear. So all three split into a part of x and a part of h.
        """
        return Sequential(build_norm_layer(norm_cfg, channels)[1], nn.ReLU(inplace=True),
                          reader_like(block.convs[0], channels, conv_cfg))

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size.

        Returns:
            tuple[Tensor]: The outputs of the stages in ``out_indices``; with
            ``out_hidden`` also the last hidden state, (N, k, H', W').
        """
        x = self.stem(x)
        state = None
        outs = []
        for i, blocks in enumerate(self.stages):
            x, state = self._run_stage(i, blocks, x, state)
            if i in self.out_indices:
                outs.append(x)
        outs[-1] = self.final(outs[-1])
        return (*outs, state[0]) if self.out_hidden else tuple(outs)
