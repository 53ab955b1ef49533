_base_ = '../pretrain/rla_r101_imagenet.py'

model = dict(backbone=dict(rla=dict(shared=False)))
