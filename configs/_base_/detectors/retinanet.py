_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    'mmdet::_base_/datasets/coco_detection.py',
    '../schedule_1x.py',
    '../runtime.py',
]

# In place of mmdet's ResNet, with its settings for fine-tuning from ImageNet; a
# file of _base_/backbones says which. From random values, frozen_stages=-1 and
# norm_eval=False are right.
model = dict(
    backbone=dict(
        _delete_=True,
        type='RLAResNet',
        norm_cfg=dict(type='BN', requires_grad=True),
        frozen_stages=1,
        norm_eval=True))
