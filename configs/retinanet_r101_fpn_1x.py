_base_ = ['_base_/detectors/retinanet.py', '_base_/backbones/r101.py']

weights = dict(type='Pretrained', checkpoint='torchvision://resnet101')
model = dict(backbone=dict(init_cfg=weights, **_base_.backbone))
