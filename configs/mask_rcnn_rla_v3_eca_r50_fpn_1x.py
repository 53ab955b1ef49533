# The update that the authors' code computes, from the weights that they published.
_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/rla_v3_eca_r50.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='authors://ecanet50_rla_2215'),
        **_base_.backbone))
