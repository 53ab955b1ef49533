"""ResNet and ResNeXt with recurrent layer aggregation.

With ``rla=None`` and ``attention=None`` these are mmdet's ResNet and ResNeXt:
the same arguments, parameter names and outputs. They are built here with
mmcv's builders, so that classification does not need mmdet and detection does
not need mmpretrain.
"""
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from mmcv.cnn import build_conv_layer, build_norm_layer, build_plugin_layer
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.attention import attentions_of_stage, build_attention, check_attention
from mmrla.models.layers.checks import (
    check_choice,
    check_extra_channels,
    check_positive_int,
    check_sequence,
)
from mmrla.models.lean.conv_norm import Feature, Term, apply_layers
from mmrla.models.lean.forms import PlainForms, choose_forms
from mmrla.models.rla import BlockFeatures, RLAConfig, RLAStage, reader_like

from .base import DetectionBackbone
from .blocks import RLABlock, Stage

PLUGIN_POSITIONS = ('after_conv1', 'after_conv2', 'after_conv3')


class ResidualBlock(RLABlock):
    """The common part of both kinds of block: attention, shortcut and sum.

    Layers are added in mmdet's order, so that a seed gives the same initial
    values and an optimizer the same order of parameters.
    """
    expansion: int
    last_norm: str
    plugin_names: Dict[str, List[str]] = {}

    def add_norm(self, norm_cfg: dict, channels: int, index: int) -> None:
        """Add a norm under the name that mmcv gives its type (``bn1``)."""
        name, norm = build_norm_layer(norm_cfg, channels, postfix=index)
        self.add_module(name, norm)
        setattr(self, f'norm{index}_name', name)

    def add_junction(self, downsample: Optional[nn.Module], attention: Optional[dict],
                     channels: int) -> None:
        """Add the layers that join the residual branch and the shortcut.

        Args:
            downsample: The shortcut, or None for the identity.
            attention: Config of the attention on the residual branch.
            channels: The channels of the block's output.
        """
        self.channels = channels
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.attention = build_attention(attention, channels) if attention else None

    @property
    def norm1(self) -> nn.Module:
        """nn.Module: The norm after the first convolution."""
        return getattr(self, self.norm1_name)

    @property
    def norm2(self) -> nn.Module:
        """nn.Module: The norm after the second convolution."""
        return getattr(self, self.norm2_name)

    def plugins(self, position: str) -> List[nn.Module]:
        """The plugins at a position, in order."""
        return [getattr(self, name) for name in self.plugin_names.get(position, ())]

    def tail(self) -> List[nn.Module]:
        """The layers of the residual branch after its last norm."""
        return self.plugins('after_conv3') + ([] if self.attention is None else [self.attention])

    def gated_norm(self) -> Optional[nn.Module]:
        """The branch's last norm, unless a plugin follows it."""
        return None if self.plugins('after_conv3') else getattr(self, self.last_norm)

    def residual(self, forms: PlainForms, x: Tensor, term: Optional[Term]) -> Feature:
        """y, the residual branch."""
        raise NotImplementedError

    def features(self, x: Tensor, term: Optional[Term]) -> BlockFeatures:
        """Compute the block; for the arguments see :class:`RLABlock`."""
        forms = choose_forms(self.forms, x)
        y = self.residual(forms, x, term)
        shortcut = x if self.downsample is None else forms.sequence(self.downsample, x)
        return BlockFeatures(y, shortcut, self.relu(forms.add(y, shortcut)))

    def joint(self) -> Tuple[nn.Module, nn.Module]:
        """conv1(Concat(x, h)) = W_x x + W_h h; conv1 is W_x."""
        return self.conv1, self.norm1


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions; for the arguments see :class:`Bottleneck`."""
    expansion = 1
    last_norm = 'norm2'

    def __init__(self,
                 inplanes: int,
                 planes: int,
                 stride: int = 1,
                 dilation: int = 1,
                 downsample: Optional[nn.Module] = None,
                 style: str = 'pytorch',
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 dcn: Optional[dict] = None,
                 plugins: Optional[List[dict]] = None,
                 attention: Optional[dict] = None,
                 forms: str = 'plain',
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        self.forms = forms
        for name, value in (('dcn', dcn), ('plugins', plugins)):
            if value:
                raise ValueError(f'{name}={value!r} needs bottleneck blocks: depth 50, 101 or 152')
        self.conv1 = build_conv_layer(
            conv_cfg, inplanes, planes, 3, stride=stride, padding=dilation,
            dilation=dilation, bias=False)
        self.add_norm(norm_cfg, planes, 1)
        self.conv2 = build_conv_layer(conv_cfg, planes, planes, 3, padding=1, bias=False)
        self.add_norm(norm_cfg, planes, 2)
        self.add_junction(downsample, attention, planes)

    def residual(self, forms: PlainForms, x: Tensor, term: Optional[Term]) -> Feature:
        """3x3, 3x3."""
        out = self.relu(forms.conv_norm(self.conv1, self.norm1, x, term))
        return forms.last_conv_norm(self.conv2, self.norm2, out, self.tail())

    def branch(self) -> List[Tuple[nn.Module, nn.Module]]:
        """The convolutions of the residual branch, each with its norm."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]


class Bottleneck(ResidualBlock):
    """1x1, 3x3 and 1x1 convolution, of ResNet and ResNeXt.

    Args:
        inplanes: Channels of the input.
        planes: The output has four times as many channels.
        stride: Stride of the 3x3 convolution (``style='pytorch'``) or of the
            first 1x1 convolution (``'caffe'``).
        dilation: Dilation of the 3x3 convolution.
        downsample: The shortcut, or None for the identity.
        style: ``'pytorch'`` or ``'caffe'``.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        dcn: Config of a deformable 3x3 convolution.
        plugins: The stage's plugins, as in mmdet.
        attention: Config of the attention on the residual branch.
        groups: Groups of the 3x3 convolution.
        width: Channels of the 3x3 convolution. Defaults to ``planes``.
        forms: See :class:`~mmrla.models.backbones.blocks.RLABlock`.
        init_cfg: As in mmengine.
    """
    expansion = 4
    last_norm = 'norm3'

    def __init__(self,
                 inplanes: int,
                 planes: int,
                 stride: int = 1,
                 dilation: int = 1,
                 downsample: Optional[nn.Module] = None,
                 style: str = 'pytorch',
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 dcn: Optional[dict] = None,
                 plugins: Optional[List[dict]] = None,
                 attention: Optional[dict] = None,
                 groups: int = 1,
                 width: Optional[int] = None,
                 forms: str = 'plain',
                 init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        self.forms = forms
        channels = planes * self.expansion
        width = width or planes
        stride1, stride2 = (1, stride) if style == 'pytorch' else (stride, 1)
        self.conv1 = build_conv_layer(conv_cfg, inplanes, width, 1, stride=stride1, bias=False)
        self.add_norm(norm_cfg, width, 1)
        conv2_cfg = self.conv2_cfg(conv_cfg, dcn)
        self.conv2 = build_conv_layer(
            conv2_cfg, width, width, 3, stride=stride2, padding=dilation,
            dilation=dilation, groups=groups, bias=False)
        self.add_norm(norm_cfg, width, 2)
        self.conv3 = build_conv_layer(conv_cfg, width, channels, 1, bias=False)
        self.add_norm(norm_cfg, channels, 3)
        self.add_junction(downsample, attention, channels)
        self.plugin_names = self.add_plugins(
            plugins or [], dict(after_conv1=width, after_conv2=width, after_conv3=channels))

    @staticmethod
    def conv2_cfg(conv_cfg: Optional[dict], dcn: Optional[dict]) -> Optional[dict]:
        """The config of the 3x3 convolution, deformable if ``dcn`` is set."""
        if dcn is None:
            return conv_cfg
        dcn = dict(dcn)
        if dcn.pop('fallback_on_stride', False):
            return conv_cfg
        if conv_cfg is not None:
            raise ValueError(f'conv_cfg={conv_cfg!r} must be None where dcn={dcn!r} is set')
        return dcn

    def add_plugins(self, plugins: List[dict], channels: Dict[str, int]) -> Dict[str, List[str]]:
        """Build the plugins; returns the names of those after each convolution."""
        names = {position: [] for position in channels}
        for plugin in sorted(plugins, key=lambda plugin: PLUGIN_POSITIONS.index(
                plugin['position'])):
            position, cfg = plugin['position'], dict(plugin['cfg'])
            name, layer = build_plugin_layer(
                cfg, in_channels=channels[position], postfix=cfg.pop('postfix', ''))
            if hasattr(self, name):
                raise ValueError(f'plugin {name!r} occurs twice; give each its own postfix')
            self.add_module(name, layer)
            names[position].append(name)
        return names

    @property
    def norm3(self) -> nn.Module:
        """nn.Module: The norm after the third convolution."""
        return getattr(self, self.norm3_name)

    def residual(self, forms: PlainForms, x: Tensor, term: Optional[Term]) -> Feature:
        """1x1, 3x3, 1x1, each with its norm and plugins."""
        out = self.relu(forms.conv_norm(self.conv1, self.norm1, x, term))
        out = apply_layers(self.plugins('after_conv1'), out)
        out = self.relu(forms.conv_norm(self.conv2, self.norm2, out))
        out = apply_layers(self.plugins('after_conv2'), out)
        return forms.last_conv_norm(self.conv3, self.norm3, out, self.tail())

    def branch(self) -> List[Tuple[nn.Module, nn.Module]]:
        """The convolutions of the residual branch, each with its norm; empty with plugins."""
        if any(self.plugin_names.values()):
            return []
        return [(self.conv1, self.norm1), (self.conv2, self.norm2), (self.conv3, self.norm3)]


@MODELS.register_module()
class RLAResNet(DetectionBackbone):
    """ResNet with recurrent layer aggregation, for detection and classification.

    All arguments of mmdet's ``ResNet`` have the same meaning here.

    Args:
        depth: 18, 34, 50, 101 or 152.
        in_channels: Channels of the image.
        stem_channels: Channels of the stem. Defaults to ``base_channels``.
        base_channels: Channels of the first stage before expansion.
        num_stages: 1 to 4.
        strides: Stride of the first block of each stage.
        dilations: Dilation of each stage.
        out_indices: Stages whose output is returned.
        style: ``'pytorch'`` puts the stride of a bottleneck into the 3x3
            convolution, ``'caffe'`` into the first 1x1.
        deep_stem: Three 3x3 convolutions instead of the 7x7.
        avg_down: Average pooling instead of stride in the shortcuts.
        frozen_stages: The stem (0) and the stages up to this number do not
            train, nor does their part of the hidden path. Parts that the loaded
            weights do not contain train all the same. -1 freezes nothing.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, those of the hidden path included.
        norm_eval: Keep batch norms in eval mode while training, except those
            of a new hidden path.
        dcn: Config of deformable 3x3 convolutions.
        stage_with_dcn: The stages that have them.
        plugins: Plugins of the blocks, as in mmdet.
        with_cp: Recompute activations in backward to save memory.
        zero_init_residual: Start the last norm of each branch at zero.
        pretrained: Deprecated in mmdet; use ``init_cfg``.
        init_cfg: As in mmengine.
        rla: ``dict(channels=32, variant='v1')`` and the other keys of
            :class:`~mmrla.models.rla.RLAConfig`; None for a plain ResNet.
        attention: ``dict(type=...)`` with SE, ECA, CBAM, GC or NL, on every
            residual branch, or on those that its ``stages`` and ``blocks`` name
            (:func:`~mmrla.models.layers.attention.attentions_of_stage`).
        out_hidden: Return the last hidden state after the outputs of the
            stages, for a classifier. A detector does not need it.
        extra_channels: Added to the width of every stage, before expansion; 8
            gives the "channel + 32" ResNet-50 of the paper's ablation.
        memory_saving: Whether layers are computed in memory-saving forms
            (:mod:`mmrla.models.lean`), which give the same values. By default they
            are, unless the network is mmdet's, without hidden path and attention.

    Example:
        >>> import torch
        >>> from mmrla.models import RLAResNet
        >>> backbone = RLAResNet(depth=18, rla=dict(channels=32)).eval()
        >>> for out in backbone(torch.rand(1, 3, 65, 97)):
        ...     print(tuple(out.shape))
        (1, 64, 17, 25)
        (1, 128, 9, 13)
        (1, 256, 5, 7)
        (1, 512, 3, 4)
    """

    arch_settings = {
        18: (BasicBlock, (2, 2, 2, 2)),
        34: (BasicBlock, (3, 4, 6, 3)),
        50: (Bottleneck, (3, 4, 6, 3)),
        101: (Bottleneck, (3, 4, 23, 3)),
        152: (Bottleneck, (3, 8, 36, 3)),
    }

    def __init__(self,
                 depth: int,
                 in_channels: int = 3,
                 stem_channels: Optional[int] = None,
                 base_channels: int = 64,
                 num_stages: int = 4,
                 strides: Sequence[int] = (1, 2, 2, 2),
                 dilations: Sequence[int] = (1, 1, 1, 1),
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 style: str = 'pytorch',
                 deep_stem: bool = False,
                 avg_down: bool = False,
                 frozen_stages: int = -1,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN', requires_grad=True),
                 norm_eval: bool = True,
                 dcn: Optional[dict] = None,
                 stage_with_dcn: Sequence[bool] = (False, False, False, False),
                 plugins: Optional[List[dict]] = None,
                 with_cp: bool = False,
                 zero_init_residual: bool = True,
                 pretrained: Optional[str] = None,
                 init_cfg: Union[dict, List[dict], None] = None,
                 rla: Optional[Dict[str, Any]] = dict(channels=32, variant='v1'),
                 attention: Optional[Dict[str, Any]] = None,
                 out_hidden: bool = False,
                 extra_channels: int = 0,
                 memory_saving: Optional[bool] = None) -> None:
        self._check(depth, num_stages, strides, dilations, out_indices, style,
                    frozen_stages, dcn, stage_with_dcn, plugins)
        check_positive_int('in_channels', in_channels)
        check_positive_int('base_channels', base_channels)
        check_extra_channels(extra_channels)
        check_attention(attention)
        check_choice('memory_saving', memory_saving, (None, True, False))
        rla_config = RLAConfig.parse(rla)
        if out_hidden and rla_config is None:
            raise ValueError('out_hidden=True needs a hidden state: set rla=dict(...)')
        if rla_config is not None:
            rla_config.check_reaches_output(out_hidden)
        from_scratch = pretrained is None and init_cfg is None
        super().__init__(frozen_stages, norm_eval, with_cp, pretrained, init_cfg)

        block, stage_blocks = self.arch_settings[depth]
        self.depth = depth
        self.block = block
        self.stage_blocks = stage_blocks[:num_stages]
        self.out_indices = out_indices
        self.deep_stem = deep_stem
        self.out_hidden = out_hidden
        self.base_channels = base_channels
        if memory_saving is None:
            memory_saving = rla_config is not None or attention is not None
        self.forms = 'memory_saving' if memory_saving else 'plain'

        stem_channels = stem_channels or base_channels
        self._make_stem_layer(in_channels, stem_channels, conv_cfg, norm_cfg)
        block_init_cfg = None
        if from_scratch and zero_init_residual:
            block_init_cfg = dict(
                type='Constant', val=0, override=dict(name=block.last_norm))
        inplanes = stem_channels
        self.res_layers = []
        for i, num_blocks in enumerate(self.stage_blocks):
            planes = base_channels * 2**i + extra_channels
            stage = self.make_res_layer(
                inplanes, planes, strides[i], avg_down,
                dilation=dilations[i],
                style=style,
                conv_cfg=conv_cfg,
                norm_cfg=norm_cfg,
                dcn=dcn if dcn and stage_with_dcn[i] else None,
                plugins=self.make_stage_plugins(plugins, i),
                attentions=attentions_of_stage(attention, i, num_stages, num_blocks),
                forms=self.forms,
                init_cfg=block_init_cfg)
            inplanes = planes * block.expansion
            self.res_layers.append(f'layer{i + 1}')
            self.add_module(self.res_layers[-1], stage)
        self.feat_dim = inplanes
        self.rla = None
        if rla_config is not None:
            self.rla = self._make_hidden_path(rla_config, strides, conv_cfg, norm_cfg)
        self._freeze_stages()

    def _check(self, depth, num_stages, strides, dilations, out_indices, style,
               frozen_stages, dcn, stage_with_dcn, plugins) -> None:
        """Raise an error for values that cannot be built."""
        check_choice('depth', depth, self.arch_settings)
        check_choice('num_stages', num_stages, range(1, 5))
        check_choice('style', style, ('pytorch', 'caffe'))
        check_choice('frozen_stages', frozen_stages, range(-1, num_stages + 1))
        for name, value in (('strides', strides), ('dilations', dilations)):
            check_sequence(name, value, num_stages)
            for entry in value:
                check_positive_int(f'an entry of {name}', entry)
        if dcn is not None:
            check_sequence('stage_with_dcn', stage_with_dcn, num_stages)
        check_sequence('out_indices', out_indices)
        if not out_indices:
            raise ValueError(f'out_indices={out_indices!r} must name at least one stage')
        for index in out_indices:
            check_choice('an entry of out_indices', index, range(num_stages))
        if plugins is not None:
            check_sequence('plugins', plugins)
        for plugin in plugins or ():
            check_choice('the position of a plugin', plugin.get('position'), PLUGIN_POSITIONS)
            if plugin.get('stages') is not None:
                check_sequence('the stages of a plugin', plugin['stages'], num_stages)

    @staticmethod
    def make_stage_plugins(plugins: Optional[List[dict]], stage: int) -> List[dict]:
        """The plugins of a stage."""
        return [plugin for plugin in plugins or ()
                if plugin.get('stages') is None or plugin['stages'][stage]]

    def _make_stem_layer(self, in_channels: int, channels: int, conv_cfg: Optional[dict],
                         norm_cfg: dict) -> None:
        """The layers before the first stage, under mmdet's names."""
        if self.deep_stem:
            half = channels // 2
            layers = []
            for before, after, stride in ((in_channels, half, 2), (half, half, 1),
                                          (half, channels, 1)):
                layers += [
                    build_conv_layer(conv_cfg, before, after, 3, stride=stride, padding=1,
                                     bias=False),
                    build_norm_layer(norm_cfg, after)[1],
                    nn.ReLU(inplace=True)]
            self.stem = nn.Sequential(*layers)
        else:
            self.conv1 = build_conv_layer(
                conv_cfg, in_channels, channels, 7, stride=2, padding=3, bias=False)
            self.norm1_name, norm1 = build_norm_layer(norm_cfg, channels, postfix=1)
            self.add_module(self.norm1_name, norm1)
            self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    @property
    def norm1(self) -> nn.Module:
        """nn.Module: The norm of the 7x7 stem."""
        return getattr(self, self.norm1_name)

    def make_res_layer(self, inplanes: int, planes: int, stride: int, avg_down: bool,
                       attentions: Sequence[Optional[dict]], **kwargs) -> Stage:
        """The blocks of a stage, with an attention or None for each."""
        channels = planes * self.block.expansion
        downsample = None
        if stride != 1 or inplanes != channels:
            downsample = self._make_shortcut(
                inplanes, channels, stride, avg_down, kwargs['conv_cfg'], kwargs['norm_cfg'])
        blocks = [self.block(inplanes, planes, stride=stride, downsample=downsample,
                             attention=attentions[0], **kwargs)]
        blocks += [self.block(channels, planes, attention=attention, **kwargs)
                   for attention in attentions[1:]]
        return Stage(*blocks)

    @staticmethod
    def _make_shortcut(inplanes: int, channels: int, stride: int, avg_down: bool,
                       conv_cfg: Optional[dict], norm_cfg: dict) -> nn.Sequential:
        """The shortcut of a block that changes the shape."""
        layers = []
        if avg_down:
            layers.append(nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False))
            stride = 1
        conv = build_conv_layer(conv_cfg, inplanes, channels, 1, stride=stride, bias=False)
        return nn.Sequential(*layers, conv, build_norm_layer(norm_cfg, channels)[1])

    def _make_hidden_path(self, config: RLAConfig, strides: Sequence[int],
                          conv_cfg: Optional[dict], norm_cfg: dict) -> ModuleList:
        """The hidden path, one part for each stage."""
        stages = ModuleList()
        for i, num_blocks in enumerate(self.stage_blocks):
            is_last = i == len(self.stage_blocks) - 1
            blocks = getattr(self, self.res_layers[i])
            stages.append(RLAStage(
                readers=[reader_like(block.conv1, config.channels, conv_cfg) for block in blocks],
                feature_channels=blocks[-1].channels,
                stride=strides[i],
                num_updates=num_blocks - (is_last and not self.out_hidden),
                config=config,
                forms=self.forms,
                conv_cfg=conv_cfg,
                norm_cfg=norm_cfg))
        return stages

    def stages_with_blocks(self) -> List[nn.Module]:
        """``layer1`` to ``layer4``."""
        return [getattr(self, name) for name in self.res_layers]

    def _freeze_stages(self) -> None:
        """Turn off the gradients and statistics of the frozen modules."""
        frozen = []
        if self.frozen_stages >= 0:
            frozen += [self.stem] if self.deep_stem else [self.conv1, self.norm1]
        for i in range(self.frozen_stages):
            frozen.append(getattr(self, self.res_layers[i]))
            if self.rla is not None:
                frozen.append(self.rla[i])
        self._freeze(frozen)

    def forward_stem(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, C, H/4, W/4)."""
        forms = choose_forms(self.forms, x)

        def layers(x: Tensor) -> Tensor:
            if self.deep_stem:
                return forms.max_pool(self.maxpool, forms.sequence(self.stem, x))
            x = forms.conv_norm(self.conv1, self.norm1, x)
            return forms.relu_max_pool(self.relu, self.maxpool, x)

        return layers(x) if self.training else forms.in_pooling_layout(layers, x)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Run the backbone.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size.

        Returns:
            tuple[Tensor]: The outputs of the stages in ``out_indices``; with
            ``out_hidden`` also the last hidden state, (N, k, H', W').
        """
        x = self.forward_stem(x)
        state = None
        outs = []
        for i, name in enumerate(self.res_layers):
            x, state = self._run_stage(i, getattr(self, name), x, state)
            if i in self.out_indices:
                outs.append(x)
        return (*outs, state[0]) if self.out_hidden else tuple(outs)


@MODELS.register_module()
class RLAResNeXt(RLAResNet):
    """ResNeXt with recurrent layer aggregation.

    Args:
        groups: Groups of the 3x3 convolutions.
        base_width: Channels of a group in the first stage.
        **kwargs: As for :class:`RLAResNet`; depth 50, 101 or 152.
    """

    arch_settings = {
        depth: setting for depth, setting in RLAResNet.arch_settings.items()
        if setting[0] is Bottleneck
    }

    def __init__(self, groups: int = 1, base_width: int = 4, **kwargs) -> None:
        check_positive_int('groups', groups)
        check_positive_int('base_width', base_width)
        self.groups = groups
        self.base_width = base_width
        super().__init__(**kwargs)

    def make_res_layer(self, inplanes: int, planes: int, *args, **kwargs) -> Stage:
        """The blocks of a stage, with grouped 3x3 convolutions."""
        width = planes
        if self.groups > 1:
            width = math.floor(planes * self.base_width / self.base_channels) * self.groups
        return super().make_res_layer(
            inplanes, planes, *args, groups=self.groups, width=width, **kwargs)
