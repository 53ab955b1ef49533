# Of the authors' code; not in the paper's tables.
_base_ = '../pretrain/rla_r50_imagenet.py'

model = dict(backbone=dict(rla=dict(cell='gru')), neck=dict(norm_cfg=None))
