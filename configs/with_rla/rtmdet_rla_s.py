# RTMDet-s, whose CSPNeXt has recurrent layer aggregation, from its ImageNet weights.
_base_ = 'mmdet::rtmdet/rtmdet_s_8xb32-300e_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=_base_.model.backbone,
        rla=dict(channels=32, variant='v1'),
        norm_cfg=dict(type='SyncBN')))

custom_imports = dict(imports=['mmrla'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
