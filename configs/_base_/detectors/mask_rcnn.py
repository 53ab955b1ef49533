_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    '../schedule_1x.py',
    '../runtime.py',
]

# In place of mmdet's ResNet; a file of _base_/backbones says which.
model = dict(backbone=dict(_delete_=True, type='RLAResNet'))
