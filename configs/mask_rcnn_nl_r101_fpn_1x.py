_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/nl_r101.py']

model = dict(backbone=_base_.backbone)
