_base_ = '../pretrain/rla_r164_cifar10.py'

model = dict(backbone=dict(rla=dict(exchange=False)))
