# The update that the authors' code computes, from the weights that they published.
_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/rla_v3_eca_r101.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='authors://ecanet101_rla_2100'),
        **_base_.backbone))
