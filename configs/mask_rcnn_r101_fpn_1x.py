_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/r101.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet101'), **_base_.backbone))
