_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/cbam_r101.py']

model = dict(backbone=_base_.backbone)
