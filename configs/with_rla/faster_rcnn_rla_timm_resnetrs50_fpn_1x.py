# timm's ResNet-RS-50 with recurrent layer aggregation, from timm's ImageNet weights.
_base_ = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=dict(
            type='mmpretrain.TIMMBackbone',
            model_name='resnetrs50',
            features_only=True,
            pretrained=True,
            out_indices=(1, 2, 3, 4)),
        rla=dict(channels=32, variant='v1')))

custom_imports = dict(imports=['mmrla', 'mmpretrain.models'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
