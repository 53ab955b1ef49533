_base_ = '../pretrain/rla_r164_cifar10.py'

model = dict(
    backbone=dict(rla=dict(channels=24)),
    neck=dict(channels=24),
    head=dict(in_channels=256 + 24))
