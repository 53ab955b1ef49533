# ResNeSt-50 with recurrent layer aggregation, from its ImageNet weights.
_base_ = 'mmdet::resnest/faster-rcnn_s50_fpn_syncbn-backbone+head_ms-range-1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=_base_.model.backbone,
        rla=dict(channels=32, variant='v1'),
        norm_cfg=dict(type='SyncBN', requires_grad=True)))

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
