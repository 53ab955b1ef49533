_base_ = [
    '../_base_/cifar_models/densenet100.py',
    '../_base_/pretrain/cifar_folders.py',
    '../_base_/pretrain/schedule_short.py',
    '../_base_/pretrain/runtime.py',
]

model = dict(backbone=dict(sharing='lag'))
train_dataloader = dict(batch_size=16)
randomness = dict(seed=0)
