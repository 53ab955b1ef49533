_base_ = ['_base_/detectors/retinanet.py', '_base_/backbones/rla_eca_r50.py']

model = dict(
    backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'), **_base_.backbone))
