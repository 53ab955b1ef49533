# The update that the authors' code computes, from the weights that they published.
_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/rla_v3_r101.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='authors://resnet101_rla_2148'),
        **_base_.backbone))
