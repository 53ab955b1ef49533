# A RetinaNet of the size of faster_rcnn_rla_r18_fpn.py.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/shapes.py',
    '../_base_/schedule_1x.py',
    '../_base_/runtime.py',
]

neck_channels = 64
model = dict(
    backbone=dict(
        _delete_=True,
        type='RLAResNet',
        depth=18,
        base_channels=32,
        norm_eval=False,
        zero_init_residual=False,
        rla=dict(channels=16, variant='v1')),
    neck=dict(
        in_channels=[32, 64, 128, 256],
        out_channels=neck_channels,
        start_level=0,
        norm_cfg=dict(type='BN')),
    bbox_head=dict(
        num_classes=6,
        in_channels=neck_channels,
        feat_channels=neck_channels,
        stacked_convs=2,
        anchor_generator=dict(strides=[4, 8, 16, 32, 64])))

max_epochs = 8
train_cfg = dict(max_epochs=max_epochs, val_interval=2)
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=10))
auto_scale_lr = dict(enable=False)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', T_max=max_epochs, eta_min=1e-5, convert_to_iter_based=True),
]
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
