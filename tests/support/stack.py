"""Which distribution of mmengine, mmcv, mmdet and mmpretrain runs the tests."""
from mmrla.distributions import installed

ONEDL = installed('onedl-mmengine') is not None
