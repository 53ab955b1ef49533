_base_ = ['_base_/detectors/retinanet.py', '_base_/backbones/nl_r101.py']

model = dict(backbone=_base_.backbone)
