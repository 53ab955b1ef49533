# For the weights that the authors published: their program computes v3.
_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/rla_v3_eca_r101.py']

model = dict(backbone=_base_.backbone)
