# RegNetX-3.2GF with recurrent layer aggregation, from its ImageNet weights.
_base_ = 'mmdet::regnet/faster-rcnn_regnetx-3.2GF_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=_base_.model.backbone,
        rla=dict(channels=32, variant='v1')))

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
