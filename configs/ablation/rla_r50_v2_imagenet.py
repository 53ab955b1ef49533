_base_ = '../pretrain/rla_r50_imagenet.py'

model = dict(backbone=dict(rla=dict(variant='v2')))
