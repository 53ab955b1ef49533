# From a plain ResNet's ImageNet weights, without an ImageNet stage of its own.
_base_ = 'mask_rcnn_rla_r101_fpn_1x.py'

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet101'),
        rla=dict(pretrained=False)))
