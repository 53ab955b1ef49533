_base_ = '../pretrain/rla_r164_cifar10.py'

model = dict(
    backbone=dict(rla=dict(channels=16)),
    neck=dict(channels=16),
    head=dict(in_channels=256 + 16))
