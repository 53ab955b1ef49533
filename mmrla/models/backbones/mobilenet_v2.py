"""MobileNetV2 with recurrent layer aggregation.

With ``rla=None`` and ``attention=None`` this is mmdet's MobileNetV2: the same
arguments, parameter names and outputs. mmpretrain's computes the same, but
names the layers of a block ``conv.0`` to ``conv.2``.

In an inverted residual block h enters after the expansion (appendix of the
paper, "RLA-MobileNetV2 for ImageNet"), so that it is not expanded::

    e = relu6(norm(expand(x)))
    y = norm(linear(relu6(norm(depthwise(Concat(e, h))))))

A depthwise convolution, the norm after it and the activation act on every channel
separately, and the 1x1 convolution is linear. So the channels of h have their own
depthwise convolution, norm and activation. The columns for h of the 1x1 convolution
give a term that is added to its output before the norm. The layers of the block keep
the shapes of the plain network.
"""
from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from mmcv.cnn import ConvModule, build_conv_layer
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.attention import build_attention, check_attention
from mmrla.models.layers.checks import check_choice
from mmrla.models.lean.conv_norm import Term, conv_plus
from mmrla.models.rla import VARIANTS, BlockFeatures, RLAConfig, RLAStage, State

from .base import DetectionBackbone, Joint
from .blocks import RLABlock, UninitialisedStage
from .defaults import Default, fill_defaults

DEFAULTS = dict(out_indices=Default((1, 2, 4, 7), (7,)))

# The other variants feed the shortcut to the hidden path.
MOBILENET_V2_VARIANTS = [
    name for name, variant in VARIANTS.items() if variant.source != 'shortcut']


def round_channels(channels: float) -> int:
    """The nearest multiple of 8 that is not below nine tenths of ``channels``."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


class JointConvModule(ConvModule):
    """A ``ConvModule`` whose 1x1 convolution may read Concat(x, h)."""

    def forward(self, x: Tensor, term: Optional[Term] = None) -> Tensor:
        """Convolution, norm and, where the layer has one, activation.

        Args:
            x: Shape (N, C_in, H, W).
            term: ``W_h h`` of shape (N, C, H, W); None without a hidden path.

        Returns:
            Tensor: Shape (N, C, H, W).
        """
        if term is None:
            return super().forward(x)
        out = self.norm(conv_plus(self.conv, x, term))
        return self.activate(out) if self.with_activation else out


class InvertedResidual(RLABlock):
    """1x1 expansion, depthwise 3x3 and linear 1x1 convolution.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Stride of the depthwise convolution.
        expand_ratio: Ratio of the inner width to the input; 1 has no expansion.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        act_cfg: Config of the activations, as in mmcv.
        attention: Config of the attention on the residual branch.
        with_cp: See :class:`~mmrla.models.backbones.blocks.RLABlock`.
        init_cfg: As in mmengine.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 stride: int,
                 expand_ratio: int,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 act_cfg: dict = dict(type='ReLU6'),
                 attention: Optional[Dict[str, Any]] = None,
                 with_cp: bool = False,
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        width = in_channels * expand_ratio
        self.with_cp = with_cp
        cfgs = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg)
        self.stride = stride
        self.out_channels = out_channels
        self.has_shortcut = stride == 1 and in_channels == out_channels
        self.expand_conv = None
        if expand_ratio != 1:
            self.expand_conv = ConvModule(in_channels, width, 1, act_cfg=act_cfg, **cfgs)
        self.depthwise_conv = ConvModule(
            width, width, 3, stride=stride, padding=1, groups=width, act_cfg=act_cfg, **cfgs)
        self.linear_conv = JointConvModule(width, out_channels, 1, act_cfg=None, **cfgs)
        self.attention = build_attention(attention, out_channels) if attention else None

    def gated_norm(self) -> nn.Module:
        """The norm of the linear convolution."""
        return self.linear_conv.norm

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block; for the arguments see :class:`RLABlock`."""
        y = x if self.expand_conv is None else self.expand_conv(x)
        y = self.linear_conv(self.depthwise_conv(y), term=term)
        if self.attention is not None:
            y = self.attention(y)
        if self.has_shortcut:
            return BlockFeatures(y, x, x + y)
        return BlockFeatures(y, None, y)

    def joint(self) -> Tuple[nn.Module, nn.Module]:
        """The linear convolution, and its norm."""
        return self.linear_conv.conv, self.linear_conv.norm


def make_reader(block: InvertedResidual, channels: int, conv_cfg: Optional[dict],
                norm_cfg: dict, act_cfg: dict) -> nn.Sequential:
    """The part of a block's depthwise and linear convolution that reads h.

    Args:
        block: The block that reads h.
        channels: k, the channels of h.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norm, as in mmcv.
        act_cfg: Config of the activation, as in mmcv.

    Returns:
        nn.Sequential: Computes the block's term from h, of shape (N, k, H, W).
    """
    depthwise = ConvModule(
        channels, channels, 3, stride=block.stride, padding=1, groups=channels,
        conv_cfg=conv_cfg, norm_cfg=norm_cfg, act_cfg=act_cfg)
    linear = ConvModule(
        channels, block.out_channels, 1, bias=False, conv_cfg=conv_cfg, act_cfg=None)
    return nn.Sequential(OrderedDict(depthwise_conv=depthwise, linear_conv=linear))


@MODELS.register_module()
class RLAMobileNetV2(DetectionBackbone):
    """MobileNetV2 with recurrent layer aggregation.

    All arguments of mmdet's ``MobileNetV2`` have the same meaning here. Outputs
    0 to 6 are those of ``layer1`` to ``layer7``. Output 7 is that of ``conv2``,
    which reads Concat(x, relu6(norm(h))) of the last h. With a hidden path, no
    layer after the last of ``out_indices`` is built, and no h that nothing reads.

    Args:
        widen_factor: Factor of the width of every layer.
        out_indices: Outputs that are returned. The default is (1, 2, 4, 7) in mmdet and
            (7,) in mmpretrain (``defaults``).
        frozen_stages: ``conv1`` (0) and the layers up to this number do not
            train, nor does their part of the hidden path, with any recurrent
            convolution that they share with a later layer. Parts that the loaded
            weights do not contain train all the same. -1 freezes nothing.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, those of the hidden path included.
        act_cfg: Config of the activations, as in mmcv.
        norm_eval: Keep batch norms in eval mode while training.
        with_cp: Recompute activations in backward to save memory.
        pretrained: Deprecated in mmdet; use ``init_cfg``.
        init_cfg: As in mmengine.
        rla: ``dict(channels=32, variant='v1')``, see
            :class:`~mmrla.models.rla.RLAConfig`, with variant v1 to v4; None
            for a plain MobileNetV2.
        attention: ``dict(type=...)`` with SE, ECA, CBAM, GC or NL, on every
            residual branch. ECA has kernel size 1 below 96 channels and 3 from
            there on, unless ``kernel_size`` is given.
        shared_recurrent: One recurrent convolution for the whole network. By
            default each stage has its own, as in the paper's text; the outputs
            that the authors' code computed agree with this.
        defaults: ``'mmdet'`` or ``'mmpretrain'``, as for
            :class:`~mmrla.models.backbones.resnet.RLAResNet`.

    Example:
        >>> import torch
        >>> from mmrla.models import RLAMobileNetV2
        >>> backbone = RLAMobileNetV2(rla=dict(channels=32)).eval()
        >>> for out in backbone(torch.rand(1, 3, 65, 97)):
        ...     print(tuple(out.shape))
        (1, 24, 17, 25)
        (1, 32, 9, 13)
        (1, 96, 5, 7)
        (1, 1280, 3, 4)
    """

    # Of layer1 to layer7: expand ratio, channels, blocks, stride of the first.
    arch_settings = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                     (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self,
                 widen_factor: float = 1.,
                 out_indices: Optional[Sequence[int]] = None,
                 frozen_stages: int = -1,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 act_cfg: dict = dict(type='ReLU6'),
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 pretrained: Optional[str] = None,
                 init_cfg: Union[dict, List[dict], None] = None,
                 rla: Optional[Dict[str, Any]] = dict(channels=32, variant='v1'),
                 attention: Optional[Dict[str, Any]] = None,
                 shared_recurrent: bool = False,
                 defaults: Optional[str] = None) -> None:
        out_indices, = fill_defaults(
            type(self).__name__, defaults, DEFAULTS, out_indices=out_indices)
        self._check(widen_factor, out_indices, frozen_stages)
        check_attention(attention)
        rla_config = self._parse_rla(rla, shared_recurrent)
        if rla_config is not None:
            rla_config.check_reaches_output(7 in out_indices)  # conv2 reads the last h
        super().__init__(frozen_stages, norm_eval, with_cp, pretrained, init_cfg)
        self.widen_factor = widen_factor
        self.out_indices = out_indices
        self.conv_cfg = conv_cfg
        self.norm_cfg = norm_cfg
        self.act_cfg = act_cfg

        cfgs = dict(conv_cfg=conv_cfg, norm_cfg=norm_cfg, act_cfg=act_cfg)
        channels = round_channels(32 * widen_factor)
        self.conv1 = ConvModule(3, channels, 3, stride=2, padding=1, **cfgs)
        # mmdet always builds all eight layers. With a hidden path only the layers
        # that train are built, so that DDP finds no unused parameter.
        num_layers = 8 if rla_config is None else max(out_indices) + 1
        self.layers = []
        for i, (ratio, base, num_blocks, stride) in enumerate(self.arch_settings[:num_layers]):
            width = round_channels(base * widen_factor)
            self.layers.append(f'layer{i + 1}')
            self.add_module(self.layers[-1], self.make_layer(
                channels, width, num_blocks, stride, ratio,
                attention=self._attention_for(attention, width), with_cp=with_cp, **cfgs))
            channels = width
        self.in_channels = channels
        if num_layers == 8:
            self.out_channel = int(1280 * max(1, widen_factor))
            self.conv2 = JointConvModule(channels, self.out_channel, 1, **cfgs)
            self.layers.append('conv2')
        self.rla = None
        if rla_config is not None:
            self._add_hidden_path(rla_config, shared_recurrent, **cfgs)
        self._freeze_stages()

    @staticmethod
    def _check(widen_factor: float, out_indices: Sequence[int], frozen_stages: int) -> None:
        """Raise an error for values that cannot be built."""
        if type(widen_factor) not in (int, float) or not 0 < widen_factor < float('inf'):
            raise ValueError(f'widen_factor={widen_factor!r} must be a number above 0')
        if not out_indices:
            raise ValueError(f'out_indices={out_indices!r} must name at least one output')
        for index in out_indices:
            check_choice('an entry of out_indices', index, range(8))
        check_choice('frozen_stages', frozen_stages, range(-1, 8))

    @staticmethod
    def _parse_rla(rla: Optional[Dict[str, Any]], shared_recurrent: bool) -> Optional[RLAConfig]:
        """Check the settings of the hidden path."""
        check_choice('shared_recurrent', shared_recurrent, (False, True))
        config = RLAConfig.parse(rla)
        if config is None:
            if shared_recurrent:
                raise ValueError('shared_recurrent=True needs a hidden path: set rla=dict(...)')
            return None
        if config.variant not in MOBILENET_V2_VARIANTS:
            listed = ', '.join(map(repr, MOBILENET_V2_VARIANTS))
            raise ValueError(f'rla.variant={config.variant!r} reads the shortcut, but not every '
                             f'block of a MobileNetV2 has one; choose one of: {listed}')
        return config

    @staticmethod
    def _attention_for(cfg: Optional[Dict[str, Any]], channels: int) -> Optional[Dict[str, Any]]:
        """The attention of a block, with the authors' kernel sizes for ECA."""
        if cfg is None or cfg['type'] != 'ECA' or cfg.get('kernel_size') is not None:
            return cfg
        return dict(cfg, kernel_size=1 if channels < 96 else 3)

    @staticmethod
    def make_layer(in_channels: int, out_channels: int, num_blocks: int, stride: int,
                   expand_ratio: int, **kwargs) -> UninitialisedStage:
        """The blocks of a layer, the first with the stride.

        As in mmdet, mmengine's initialisation does not enter the layer: otherwise
        the ConvModules of the blocks would be initialised again.
        """
        blocks = [InvertedResidual(in_channels, out_channels, stride, expand_ratio, **kwargs)]
        blocks += [InvertedResidual(out_channels, out_channels, 1, expand_ratio, **kwargs)
                   for _ in range(1, num_blocks)]
        return UninitialisedStage(*blocks)

    def _add_hidden_path(self, config: RLAConfig, shared_recurrent: bool,
                         conv_cfg: Optional[dict], norm_cfg: dict, act_cfg: dict) -> None:
        """Add the hidden path, one part for each layer, and the reader of conv2."""
        k = config.channels
        has_conv2 = 'conv2' in self.layers
        names = self.layers[:7]
        self.rla = ModuleList()
        for i, name in enumerate(names):
            blocks = getattr(self, name)
            stride = blocks[0].stride
            # The paper groups the layers into 5 stages, each of one resolution,
            # that share a depthwise recurrent convolution. The channels
            # differ within a stage, so every layer has its own 1x1.
            if i == 0 or (stride == 2 and not shared_recurrent):
                recurrent = build_conv_layer(conv_cfg, k, k, 3, padding=1, groups=k, bias=False)
            is_last = i == len(names) - 1
            self.rla.append(RLAStage(
                readers=[make_reader(block, k, conv_cfg, norm_cfg, act_cfg) for block in blocks],
                feature_channels=blocks[0].out_channels,
                stride=stride,
                num_updates=len(blocks) - (is_last and not has_conv2),
                config=config,
                recurrent=recurrent,
                conv_cfg=conv_cfg,
                norm_cfg=norm_cfg))
        if has_conv2:
            self.conv2_reader = ConvModule(
                k, self.out_channel, 1, conv_cfg=conv_cfg, norm_cfg=norm_cfg,
                act_cfg=act_cfg, order=('norm', 'act', 'conv'))

    def hidden_path(self) -> List[nn.Module]:
        """The modules that a plain MobileNetV2 does not have."""
        end = [self.conv2_reader] if self.rla is not None and 'conv2' in self.layers else []
        return super().hidden_path() + end

    def readers(self) -> List[nn.Module]:
        """The blocks' readers, and that of conv2."""
        return super().readers() + self.hidden_path()[1:]

    def stages_with_blocks(self) -> List[nn.Module]:
        """``layer1`` to ``layer7``, as far as they are built."""
        return [getattr(self, name) for name in self.layers if name != 'conv2']

    def joints(self) -> Iterator[Joint]:
        """The places where h enters the blocks and ``conv2``."""
        yield from super().joints()
        for reader in self.hidden_path()[1:]:
            yield Joint(self.conv2.conv, self.conv2.norm, reader.conv)

    def _freeze_stages(self) -> None:
        """Turn off the gradients and, except for conv1 as in mmdet, the statistics."""
        if self.frozen_stages >= 0:
            self.conv1.requires_grad_(False)
        frozen = [getattr(self, name) for name in self.layers[:max(0, self.frozen_stages)]]
        if self.rla is not None:
            frozen += self.rla[:len(frozen)]
        self._freeze(frozen)

    def _forward_layer(self, i: int, x: Tensor, state: Optional[State]
                       ) -> Tuple[Tensor, Optional[State]]:
        """Both paths along ``self.layers[i]``."""
        layer = getattr(self, self.layers[i])
        if self.layers[i] == 'conv2':
            term = None if self.rla is None else self.conv2_reader(state[0])
            return layer(x, term=term), state
        return self._run_stage(i, layer, x, state)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size.

        Returns:
            tuple[Tensor]: The outputs in ``out_indices``.
        """
        x = self.conv1(x)
        state = None
        outs = []
        for i in range(len(self.layers)):
            x, state = self._forward_layer(i, x, state)
            if i in self.out_indices:
                outs.append(x)
        return tuple(outs)
