# 8 channels more in each stage are 32 behind the expansion.
_base_ = '../pretrain/r50_imagenet.py'

model = dict(backbone=dict(extra_channels=8), head=dict(in_channels=2048 + 32))
