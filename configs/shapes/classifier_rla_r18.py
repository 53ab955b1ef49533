# Pretraining for faster_rcnn_rla_r18_fpn.py on the embedded classification set:
# the same backbone, with the classifier that sees its last hidden state.
_base_ = ['../_base_/pretrain/cifar_folders.py', '../_base_/pretrain/runtime.py']

k = 16
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='RLAResNet',
        depth=18,
        base_channels=32,
        out_indices=(3, ),
        norm_eval=False,
        zero_init_residual=False,
        rla=dict(channels=k, variant='v1'),
        out_hidden=True),
    neck=dict(type='RLAPooling', channels=k),
    head=dict(
        type='LinearClsHead',
        num_classes=6,
        in_channels=256 + k,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
data_preprocessor = dict(num_classes=6, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])

data_root = 'data/shape_classes/'
train_pipeline = [
    dict(type='LoadNamedImage'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=32, dataset=dict(data_root=data_root + 'train', pipeline=train_pipeline))
val_dataloader = dict(batch_size=32, dataset=dict(data_root=data_root + 'val'))
test_dataloader = val_dataloader

max_epochs = 5
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05))
param_scheduler = dict(
    type='CosineAnnealingLR', T_max=max_epochs, eta_min=1e-5, convert_to_iter_based=True)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=1))
randomness = dict(seed=0)
