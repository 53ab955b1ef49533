_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/rla_gc_r50.py']

model = dict(backbone=_base_.backbone)
