"""Configs by package name, from any folder and any kind of installation.

``_base_ = 'mmrla::configs/faster_rcnn_rla_r50_fpn_1x.py'`` inherits from the config with this
path in the repository. The form is mmengine's, which needs a folder in the name and knows
other packages only if their name is in its table.

mmengine looks for ``.mim/configs/`` beside the module that the table names, and it does not
find an editable installation by the name of its distribution. The table therefore names
this package: ``.mim/configs/configs`` is a link in a clone and a copy in a wheel.
"""
from mmengine.config.utils import MODULE2PACKAGE


def register() -> None:
    """Add the name ``mmrla`` to mmengine's table of packages with configs."""
    MODULE2PACKAGE.setdefault('mmrla', __name__)
