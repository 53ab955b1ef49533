_base_ = '../pretrain/r164_cifar10.py'

model = dict(
    backbone=dict(_delete_=True, type='CifarDualPathNet', depth=164, growth=12),
    head=dict(in_channels=496))
