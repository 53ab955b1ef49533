_base_ = ['_base_/detectors/retinanet.py', '_base_/backbones/gc_r50.py']

model = dict(backbone=_base_.backbone)
