# The update that the authors' code computes, from the weights that they published.
_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/rla_v3_r50.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='authors://resnet50_rla_2283'),
        **_base_.backbone))
