# 3 channels more in each stage are 12 behind the expansion.
_base_ = '../pretrain/r164_cifar10.py'

model = dict(backbone=dict(extra_channels=3), head=dict(in_channels=256 + 12))
