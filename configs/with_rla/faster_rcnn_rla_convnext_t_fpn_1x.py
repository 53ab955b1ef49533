# ConvNeXt-T with recurrent layer aggregation, from its ImageNet weights. The optimizer is
# the one that mmdet has for its Mask R-CNN with a ConvNeXt, without mixed precision (--amp).
_base_ = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='WithRLA',
        backbone=dict(
            type='mmpretrain.ConvNeXt',
            arch='tiny',
            out_indices=(0, 1, 2, 3),
            drop_path_rate=0.4,
            layer_scale_init_value=1.0,
            gap_before_final_norm=False,
            init_cfg=dict(
                type='Pretrained',
                checkpoint='https://download.openmmlab.com/mmclassification/v0/convnext/'
                'downstream/convnext-tiny_3rdparty_32xb128-noema_in1k_20220301-795e9634.pth',
                prefix='backbone.')),
        rla=dict(channels=32, variant='v1')),
    neck=dict(in_channels=[96, 192, 384, 768]))

optim_wrapper = dict(
    constructor='LearningRateDecayOptimizerConstructor',
    paramwise_cfg=dict(decay_rate=0.95, decay_type='layer_wise', num_layers=6),
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05))

custom_imports = dict(imports=['mmrla', 'mmpretrain.models'], allow_failed_imports=False)
runner_type = 'RLARunner'
default_hooks = dict(
    checkpoint=dict(type='SafeCheckpointHook'), finite_loss=dict(type='FiniteLossHook'))
