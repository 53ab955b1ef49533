"""ResNeXt with recurrent layer aggregation.

With ``rla=None`` and ``attention=None`` this is mmdet's ResNeXt.
"""
import math
from typing import Any, Optional

from mmengine.registry import MODELS

from mmrla.models.layers.checks import check_positive_int

from . import resnet
from .blocks import Stage
from .defaults import Default, choose_defaults, fill_defaults

DEFAULTS = dict(groups=Default(1, 32))


class Bottleneck(resnet.Bottleneck):
    """A bottleneck with a grouped 3x3 convolution.

    Args:
        inplanes: Channels of the input.
        planes: The output has ``expansion`` times as many channels.
        groups: Groups of the 3x3 convolution.
        base_width: Channels of a group in the first stage.
        base_channels: ``planes`` of the first stage.
        **kwargs: As for :class:`~mmrla.models.backbones.resnet.ResidualBlock`.
    """

    def __init__(self, inplanes: int, planes: int, groups: int = 1, base_width: int = 4,
                 base_channels: int = 64, **kwargs) -> None:
        super().__init__(inplanes, planes, **kwargs)
        self.groups = groups
        width = planes
        if groups > 1:
            width = math.floor(planes * base_width / base_channels) * groups
        # mmdet's block replaces the layers of the ResNet's too, so that a seed gives the
        # same values.
        for name in sum(self.plugin_names.values(), []):
            delattr(self, name)
        self.add_branch(width, groups)
        self.plugin_names = self.add_plugins()


@MODELS.register_module()
class RLAResNeXt(resnet.RLAResNet):
    """ResNeXt with recurrent layer aggregation.

    mmdet's ResNeXt ignores ``zero_init_residual``, mmpretrain's does not. Without hidden path
    and attention this one does as the package whose defaults it has. Otherwise it starts
    the last norm of each branch at zero.

    Args:
        groups: Groups of the 3x3 convolutions. The default is 1 in mmdet and 32 in
            mmpretrain (``defaults``).
        base_width: Channels of a group in the first stage.
        width_per_group: mmpretrain's name of ``base_width``.
        defaults: As for :class:`~mmrla.models.backbones.resnet.RLAResNet`.
        **kwargs: As for :class:`~mmrla.models.backbones.resnet.RLAResNet`; depth 50, 101 or
            152.
    """

    arch_settings = {
        depth: (Bottleneck, blocks)
        for depth, (block, blocks) in resnet.RLAResNet.arch_settings.items()
        if block is resnet.Bottleneck
    }

    def __init__(self, groups: Optional[int] = None, base_width: int = 4,
                 width_per_group: Optional[int] = None, defaults: Optional[str] = None,
                 **kwargs) -> None:
        groups, = fill_defaults(type(self).__name__, defaults, DEFAULTS, groups=groups)
        if width_per_group is not None:
            base_width = width_per_group
        check_positive_int('groups', groups)
        check_positive_int('base_width', base_width)
        self.groups = groups
        self.base_width = base_width
        super().__init__(defaults=defaults, **kwargs)

    def starts_at_zero(self, is_plain: bool, defaults: Optional[str]) -> bool:
        """Whether the last norm of each branch starts at zero."""
        if is_plain and choose_defaults(defaults) == 'mmdet':
            return False
        return super().starts_at_zero(is_plain, defaults)

    def make_res_layer(self, **kwargs: Any) -> Stage:
        """The blocks of a stage, with grouped 3x3 convolutions."""
        return super().make_res_layer(
            groups=self.groups, base_width=self.base_width, base_channels=self.base_channels,
            **kwargs)
