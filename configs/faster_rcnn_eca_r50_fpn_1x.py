_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/eca_r50.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'), **_base_.backbone))
