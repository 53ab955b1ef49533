_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/eca_r152.py']

model = dict(backbone=_base_.backbone)
