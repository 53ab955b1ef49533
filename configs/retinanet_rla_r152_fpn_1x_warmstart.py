# From a plain ResNet's ImageNet weights, without an ImageNet stage of its own.
_base_ = 'retinanet_rla_r152_fpn_1x.py'

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet152'),
        rla=dict(pretrained=False)))
