_base_ = 'resnet.py'

backbone = dict(
    depth=152,
    rla=None,
    init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet152'))
