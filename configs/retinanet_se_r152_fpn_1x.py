_base_ = ['_base_/detectors/retinanet.py', '_base_/backbones/se_r152.py']

model = dict(backbone=_base_.backbone)
