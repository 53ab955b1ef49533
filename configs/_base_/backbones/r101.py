_base_ = 'resnet.py'

backbone = dict(
    depth=101,
    rla=None,
    init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet101'))
