_base_ = [
    '../_base_/cifar_models/rla_r110.py',
    '../_base_/pretrain/cifar100.py',
    '../_base_/pretrain/schedule_cifar_300e.py',
    '../_base_/pretrain/cifar_runtime.py',
]

model = dict(head=dict(num_classes=100))
