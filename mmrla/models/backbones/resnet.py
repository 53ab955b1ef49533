"""ResNet with recurrent layer aggregation.

With ``rla=None`` and ``attention=None`` this is mmdet's ResNet: the same arguments,
parameter names and outputs. It is built here with mmcv's builders, so that
classification does not need mmdet and detection does not need mmpretrain.
"""
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

import torch
from mmcv.cnn import build_conv_layer, build_norm_layer, build_plugin_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.layers.attention import attentions_of_stage, build_attention, check_attention
from mmrla.models.layers.checks import (
    check_choice,
    check_extra_channels,
    check_positive_int,
    check_rate,
    check_sequence,
)
from mmrla.models.lean.conv_norm import Feature, Term, apply_layers
from mmrla.models.lean.cpu import in_layout_of
from mmrla.models.lean.forms import PlainForms, choose_forms
from mmrla.models.rla import BlockFeatures, RLAConfig, RLAStage, reader_like

from .base import DetectionBackbone
from .blocks import RLABlock, Stage
from .defaults import Default, choose_defaults, fill_defaults

PLUGIN_POSITIONS = ('after_conv1', 'after_conv2', 'after_conv3')
STYLES = ('pytorch', 'caffe')
DEFAULTS = dict(out_indices=Default((0, 1, 2, 3), (3,)), norm_eval=Default(True, False))
# mmpretrain drops no path below this rate either.
MIN_DROP_RATE = 1e-5


class ResidualBlock(RLABlock):
    """The common part of both kinds of block: attention, shortcut and sum.

    Layers are added in mmdet's order, so that a seed gives the same initial values
    and an optimizer the same order of parameters. The arguments up to ``init_cfg`` and
    the attributes of the same names are those of mmdet's blocks.

    Args:
        inplanes: Channels of the input.
        planes: The output has ``expansion`` times as many channels.
        stride: Stride of the block.
        dilation: Dilation of its 3x3 convolution, the first one in a basic block.
        downsample: The shortcut, or None for the identity.
        style: ``'pytorch'`` gives the stride of a bottleneck to its 3x3 convolution,
            ``'caffe'`` to its first 1x1 convolution.
        with_cp: See :class:`~mmrla.models.backbones.blocks.RLABlock`.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        dcn: Config of a deformable 3x3 convolution.
        plugins: The stage's plugins, as in mmdet.
        init_cfg: As in mmengine.
        attention: Config of the attention on the residual branch.
        forms: See :class:`~mmrla.models.backbones.blocks.RLABlock`.
        expansion: Ratio of the block's output to ``planes``. Defaults to that of the
            class.
        drop_path_rate: Probability with which training drops the residual branch of an
            image. The hidden path sees the branch as the sum does.
    """
    expansion: int
    last_norm: str

    def __init__(self,
                 inplanes: int,
                 planes: int,
                 stride: int = 1,
                 dilation: int = 1,
                 downsample: Optional[nn.Module] = None,
                 style: str = 'pytorch',
                 with_cp: bool = False,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 dcn: Optional[dict] = None,
                 plugins: Optional[List[dict]] = None,
                 init_cfg: Optional[dict] = None,
                 attention: Optional[dict] = None,
                 forms: str = 'plain',
                 expansion: Optional[int] = None,
                 drop_path_rate: float = 0.) -> None:
        super().__init__(init_cfg)
        check_choice('style', style, STYLES)
        self.inplanes = inplanes
        self.planes = planes
        self.stride = stride
        self.dilation = dilation
        self.style = style
        self.with_cp = with_cp
        self.conv_cfg = conv_cfg
        self.norm_cfg = norm_cfg
        self.dcn = dcn
        self.with_dcn = dcn is not None
        self.plugins = plugins
        self.with_plugins = plugins is not None
        self.forms = forms
        if expansion is not None:
            self.expansion = expansion
        self.channels = planes * self.expansion
        self.add_branch(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample
        self.attention = build_attention(attention, self.channels) if attention else None
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > MIN_DROP_RATE else None
        self.plugin_names: Dict[str, List[str]] = self.add_plugins()

    def add_branch(self, width: int) -> None:
        """Add the convolutions and norms of the residual branch."""
        raise NotImplementedError

    def add_plugins(self) -> Dict[str, List[str]]:
        """Add the plugins; returns the names of those after each convolution."""
        return {}

    def add_norm(self, channels: int, index: int) -> None:
        """Add a norm under the name that mmcv gives its type (``bn1``)."""
        name, norm = build_norm_layer(self.norm_cfg, channels, postfix=index)
        self.add_module(name, norm)
        setattr(self, f'norm{index}_name', name)

    @property
    def norm1(self) -> nn.Module:
        """nn.Module: The norm after the first convolution."""
        return getattr(self, self.norm1_name)

    @property
    def norm2(self) -> nn.Module:
        """nn.Module: The norm after the second convolution."""
        return getattr(self, self.norm2_name)

    def plugins_at(self, position: str) -> List[nn.Module]:
        """The plugins at a position, in order."""
        return [getattr(self, name) for name in self.plugin_names.get(position, ())]

    def tail(self) -> List[nn.Module]:
        """The layers of the residual branch after its last norm."""
        drop_path = self.drop_path if self.training else None
        return self.plugins_at('after_conv3') + [
            layer for layer in (self.attention, drop_path) if layer is not None]

    def gated_norm(self) -> Optional[nn.Module]:
        """The branch's last norm, unless a plugin follows it."""
        return None if self.plugins_at('after_conv3') else getattr(self, self.last_norm)

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
    """Two 3x3 convolutions; for the arguments see :class:`ResidualBlock`."""
    expansion = 1
    last_norm = 'norm2'

    def add_branch(self, width: int) -> None:
        """Add the convolutions and norms of the residual branch."""
        for name in ('dcn', 'plugins'):
            value = getattr(self, name)
            if value:
                raise ValueError(f'{name}={value!r} needs bottleneck blocks: depth 50, 101 or 152')
        if self.expansion != 1:
            raise ValueError(f'expansion={self.expansion!r} needs bottleneck blocks: '
                             'depth 50, 101 or 152')
        self.conv1 = build_conv_layer(
            self.conv_cfg, self.inplanes, width, 3, stride=self.stride, padding=self.dilation,
            dilation=self.dilation, bias=False)
        self.add_norm(width, 1)
        self.conv2 = build_conv_layer(self.conv_cfg, width, width, 3, padding=1, bias=False)
        self.add_norm(width, 2)

    def residual(self, forms: PlainForms, x: Tensor, term: Optional[Term]) -> Feature:
        """3x3, 3x3."""
        out = self.relu(forms.conv_norm(self.conv1, self.norm1, x, term))
        return forms.last_conv_norm(self.conv2, self.norm2, out, self.tail())

    def branch(self) -> List[Tuple[nn.Module, nn.Module]]:
        """The convolutions of the residual branch, each with its norm."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]


class Bottleneck(ResidualBlock):
    """1x1, 3x3 and 1x1 convolution; for the arguments see :class:`ResidualBlock`."""
    expansion = 4
    last_norm = 'norm3'

    def add_branch(self, width: int, groups: int = 1) -> None:
        """Add the convolutions and norms of the residual branch.

        Args:
            width: Channels of the 3x3 convolution.
            groups: Its groups.
        """
        self.width = width
        self.conv1_stride, self.conv2_stride = (
            (1, self.stride) if self.style == 'pytorch' else (self.stride, 1))
        self.conv1 = build_conv_layer(
            self.conv_cfg, self.inplanes, width, 1, stride=self.conv1_stride, bias=False)
        self.add_norm(width, 1)
        self.conv2 = build_conv_layer(
            self.conv2_cfg(), width, width, 3, stride=self.conv2_stride, padding=self.dilation,
            dilation=self.dilation, groups=groups, bias=False)
        self.add_norm(width, 2)
        self.conv3 = build_conv_layer(self.conv_cfg, width, self.channels, 1, bias=False)
        self.add_norm(self.channels, 3)

    def conv2_cfg(self) -> Optional[dict]:
        """The config of the 3x3 convolution, deformable if ``dcn`` is set."""
        if self.dcn is None:
            return self.conv_cfg
        dcn = dict(self.dcn)
        if dcn.pop('fallback_on_stride', False):
            return self.conv_cfg
        if self.conv_cfg is not None:
            raise ValueError(f'conv_cfg={self.conv_cfg!r} must be None where dcn={dcn!r} is set')
        return dcn

    def add_plugins(self) -> Dict[str, List[str]]:
        """Add the plugins; returns the names of those after each convolution."""
        for plugin in self.plugins or ():
            check_choice('the position of a plugin', plugin.get('position'), PLUGIN_POSITIONS)
        channels = dict(zip(
            PLUGIN_POSITIONS, (self.width, self.width, self.channels), strict=True))
        names = {position: [] for position in PLUGIN_POSITIONS}
        for plugin in sorted(self.plugins or (), key=lambda plugin: PLUGIN_POSITIONS.index(
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
        out = apply_layers(self.plugins_at('after_conv1'), out)
        out = self.relu(forms.conv_norm(self.conv2, self.norm2, out))
        out = apply_layers(self.plugins_at('after_conv2'), out)
        return forms.last_conv_norm(self.conv3, self.norm3, out, self.tail())

    def branch(self) -> List[Tuple[nn.Module, nn.Module]]:
        """The convolutions of the residual branch, each with its norm; empty with plugins."""
        if any(self.plugin_names.values()):
            return []
        return [(self.conv1, self.norm1), (self.conv2, self.norm2), (self.conv3, self.norm3)]


@MODELS.register_module()
class RLAResNet(DetectionBackbone):
    """ResNet with recurrent layer aggregation, for detection and classification.

    All arguments of mmdet's and mmpretrain's ``ResNet`` have the same meaning here, and
    mmdet's attributes too.

    Args:
        depth: 18, 34, 50, 101 or 152.
        in_channels: Channels of the image.
        stem_channels: Channels of the stem. The default is ``base_channels`` in mmdet and
            64 in mmpretrain (``defaults``).
        base_channels: Channels of the first stage before expansion.
        num_stages: 1 to 4.
        strides: Stride of the first block of each stage.
        dilations: Dilation of each stage.
        out_indices: Stages whose output is returned. The default is all four in mmdet and
            the last in mmpretrain (``defaults``).
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
            of a new hidden path. The default is True in mmdet and False in mmpretrain
            (``defaults``).
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
        expansion: Ratio of the channels of a block's output to its width, as in mmpretrain.
            By default 4, and 1 for depth 18 and 34.
        drop_path_rate: Probability with which training drops the residual branch of the
            last block, as in mmpretrain; it rises linearly from 0 in the first block.
        defaults: ``'mmdet'`` or ``'mmpretrain'``: whose defaults apply. By default
            mmpretrain's if the default scope is mmpretrain, and mmdet's otherwise. The log
            says which values were chosen in this way.
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
                 out_indices: Optional[Sequence[int]] = None,
                 style: str = 'pytorch',
                 deep_stem: bool = False,
                 avg_down: bool = False,
                 frozen_stages: int = -1,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN', requires_grad=True),
                 norm_eval: Optional[bool] = None,
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
                 memory_saving: Optional[bool] = None,
                 expansion: Optional[int] = None,
                 drop_path_rate: float = 0.,
                 defaults: Optional[str] = None) -> None:
        stem_channels, out_indices, norm_eval = fill_defaults(
            type(self).__name__, defaults,
            dict(DEFAULTS, stem_channels=Default(base_channels, 64)),
            stem_channels=stem_channels, out_indices=out_indices, norm_eval=norm_eval)
        self._check(depth, num_stages, strides, dilations, out_indices, style,
                    frozen_stages, dcn, stage_with_dcn, plugins)
        check_positive_int('in_channels', in_channels)
        check_positive_int('base_channels', base_channels)
        check_extra_channels(extra_channels)
        check_attention(attention)
        check_rate('drop_path_rate', drop_path_rate)
        check_choice('memory_saving', memory_saving, (None, True, False))
        rla_config = RLAConfig.parse(rla)
        if out_hidden and rla_config is None:
            raise ValueError('out_hidden=True needs a hidden state: set rla=dict(...)')
        if rla_config is not None:
            rla_config.check_reaches_output(out_hidden)
        self.is_from_scratch = pretrained is None and init_cfg is None
        super().__init__(frozen_stages, norm_eval, with_cp, pretrained, init_cfg)

        self.block, stage_blocks = self.arch_settings[depth]
        self.stage_blocks = stage_blocks[:num_stages]
        self.expansion = self._expansion(self.block, expansion)
        self.depth = depth
        self.stem_channels = stem_channels or base_channels
        self.base_channels = base_channels
        self.num_stages = num_stages
        self.strides = strides
        self.dilations = dilations
        self.out_indices = out_indices
        self.style = style
        self.deep_stem = deep_stem
        self.avg_down = avg_down
        self.conv_cfg = conv_cfg
        self.norm_cfg = norm_cfg
        self.dcn = dcn
        self.stage_with_dcn = stage_with_dcn
        self.plugins = plugins
        self.zero_init_residual = zero_init_residual
        self.out_hidden = out_hidden
        is_plain = rla_config is None and attention is None
        if memory_saving is None:
            memory_saving = not is_plain
        self.forms = 'memory_saving' if memory_saving else 'plain'

        self._make_stem_layer(in_channels, self.stem_channels)
        block_init_cfg = None
        if self.starts_at_zero(is_plain, defaults):
            block_init_cfg = dict(
                type='Constant', val=0, override=dict(name=self.block.last_norm))
        rates = torch.linspace(0, drop_path_rate, sum(stage_blocks), device='cpu').tolist()
        self.inplanes = self.stem_channels
        self.res_layers = []
        for i, num_blocks in enumerate(self.stage_blocks):
            planes = base_channels * 2**i + extra_channels
            attentions = attentions_of_stage(attention, i, num_stages, num_blocks)
            stage = self.make_res_layer(
                block=self.block,
                inplanes=self.inplanes,
                planes=planes,
                stride=strides[i],
                avg_down=avg_down,
                dilation=dilations[i],
                style=style,
                with_cp=with_cp,
                conv_cfg=conv_cfg,
                norm_cfg=norm_cfg,
                dcn=dcn if dcn and stage_with_dcn[i] else None,
                plugins=plugins and self.make_stage_plugins(plugins, i),
                init_cfg=block_init_cfg,
                forms=self.forms,
                expansion=self.expansion,
                own_settings=[dict(attention=attentions[t], drop_path_rate=rates.pop(0))
                              for t in range(num_blocks)])
            self.inplanes = planes * self.expansion
            self.res_layers.append(f'layer{i + 1}')
            self.add_module(self.res_layers[-1], stage)
        self.feat_dim = self.inplanes
        self.rla = None
        if rla_config is not None:
            self.rla = self._make_hidden_path(rla_config)
        self._freeze_stages()

    def _check(self, depth, num_stages, strides, dilations, out_indices, style,
               frozen_stages, dcn, stage_with_dcn, plugins) -> None:
        """Raise an error for values that cannot be built."""
        check_choice('depth', depth, self.arch_settings)
        check_choice('num_stages', num_stages, range(1, 5))
        check_choice('style', style, STYLES)
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
            if plugin.get('stages') is not None:
                check_sequence('the stages of a plugin', plugin['stages'], num_stages)

    @staticmethod
    def _expansion(block: Type[ResidualBlock], expansion: Optional[int]) -> int:
        """The ratio of the channels of a block's output to its width."""
        if expansion is None:
            return block.expansion
        check_positive_int('expansion', expansion)
        return expansion

    def starts_at_zero(self, is_plain: bool, defaults: Optional[str]) -> bool:
        """Whether the last norm of each branch starts at zero.

        Args:
            is_plain: Whether the network has neither hidden path nor attention.
            defaults: The argument of this name.
        """
        if choose_defaults(defaults) == 'mmpretrain':
            return self.zero_init_residual and not self.pretrained_cfgs()
        return self.zero_init_residual and self.is_from_scratch

    @staticmethod
    def make_stage_plugins(plugins: List[dict], stage_idx: int) -> List[dict]:
        """The plugins of a stage, without the key that names their stages."""
        return [{key: value for key, value in plugin.items() if key != 'stages'}
                for plugin in plugins
                if plugin.get('stages') is None or plugin['stages'][stage_idx]]

    def _make_stem_layer(self, in_channels: int, channels: int) -> None:
        """The layers before the first stage, under mmdet's names."""
        conv_cfg, norm_cfg = self.conv_cfg, self.norm_cfg
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

    def make_res_layer(self, block: Type[ResidualBlock], inplanes: int, planes: int, stride: int,
                       avg_down: bool, own_settings: Sequence[dict], **kwargs) -> Stage:
        """The blocks of a stage.

        Args:
            block: Their class.
            inplanes: Channels of the stage's input.
            planes: As for :class:`ResidualBlock`.
            stride: Stride of the first block.
            avg_down: As for the backbone.
            own_settings: Arguments of each block that the others do not share.
            **kwargs: The other arguments of :class:`ResidualBlock`.
        """
        channels = planes * self.expansion
        downsample = None
        if stride != 1 or inplanes != channels:
            downsample = self._make_shortcut(
                inplanes, channels, stride, avg_down, kwargs['conv_cfg'], kwargs['norm_cfg'])
        first, *others = own_settings
        blocks = [block(inplanes, planes, stride=stride, downsample=downsample, **first, **kwargs)]
        blocks += [block(channels, planes, **own, **kwargs) for own in others]
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

    def _make_hidden_path(self, config: RLAConfig) -> ModuleList:
        """The hidden path, one part for each stage."""
        stages = ModuleList()
        for i, num_blocks in enumerate(self.stage_blocks):
            is_last = i == len(self.stage_blocks) - 1
            blocks = getattr(self, self.res_layers[i])
            stages.append(RLAStage(
                readers=[reader_like(block.conv1, config.channels, self.conv_cfg)
                         for block in blocks],
                feature_channels=blocks[-1].channels,
                stride=self.strides[i],
                num_updates=num_blocks - (is_last and not self.out_hidden),
                config=config,
                forms=self.forms,
                conv_cfg=self.conv_cfg,
                norm_cfg=self.norm_cfg))
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

    @property
    def takes_any_layout(self) -> bool:
        """bool: Whether all layers are torch's own; mmcv's operators need the default layout."""
        return self.conv_cfg is None and self.dcn is None and self.plugins is None

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
        images = x
        x = self.forward_stem(images)
        if not self.takes_any_layout:
            x = self._in_layout_of(images, x)
        state = None
        outs = []
        for i, name in enumerate(self.res_layers):
            x, state = self._run_stage(i, getattr(self, name), x, state)
            if i in self.out_indices:
                outs.append(self._in_layout_of(images, x))
        if self.out_hidden:
            outs.append(self._in_layout_of(images, state[0]))
        return tuple(outs)

    def _in_layout_of(self, images: Tensor, x: Tensor) -> Tensor:
        """x in the layout of the images, which only the memory-saving forms change."""
        return x if self.forms == 'plain' else in_layout_of(images, x)


@MODELS.register_module()
class RLAResNetV1c(RLAResNet):
    """:class:`RLAResNet` with a deep stem."""

    def __init__(self, **kwargs) -> None:
        super().__init__(deep_stem=True, avg_down=False, **kwargs)


@MODELS.register_module()
class RLAResNetV1d(RLAResNet):
    """:class:`RLAResNet` with a deep stem and average pooling in the shortcuts."""

    def __init__(self, **kwargs) -> None:
        super().__init__(deep_stem=True, avg_down=True, **kwargs)
