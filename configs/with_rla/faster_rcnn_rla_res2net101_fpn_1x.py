# Res2Net-101 with recurrent layer aggregation, from its ImageNet weights.
_base_ = 'mmdet::res2net/faster-rcnn_res2net-101_fpn_2x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=_base_.model.backbone,
        rla=dict(channels=32, variant='v1')))

# mmdet trains this one for 2x.
max_epochs = 12
train_cfg = dict(max_epochs=max_epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[8, 11],
         gamma=0.1),
]

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
