_base_ = [
    '../_base_/cifar_models/densenet100.py',
    '../_base_/pretrain/cifar10.py',
    '../_base_/pretrain/schedule_cifar_300e.py',
    '../_base_/pretrain/cifar_runtime.py',
]
