# The ConvGRU is in the authors' code only; the paper's tables have none.
# With the branches' last norms at zero, y and h are zero at first, and without a norm
# and ReLU before the classifier the gradient grows in every block's norm of h, by
# 1 / sqrt(eps), until it overflows. Hence no zero initialisation.
_base_ = '../pretrain/rla_r50_imagenet.py'

model = dict(
    backbone=dict(zero_init_residual=False, rla=dict(cell='gru')),
    neck=dict(norm_cfg=None))
