_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/r152.py']

weights = dict(type='Pretrained', checkpoint='torchvision://resnet152')
model = dict(backbone=dict(init_cfg=weights, **_base_.backbone))
