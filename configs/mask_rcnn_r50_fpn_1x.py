_base_ = ['_base_/detectors/mask_rcnn.py', '_base_/backbones/r50.py']

weights = dict(type='Pretrained', checkpoint='torchvision://resnet50')
model = dict(backbone=dict(init_cfg=weights, **_base_.backbone))
