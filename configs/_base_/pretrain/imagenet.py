# ImageNet in data/imagenet, 4 GPUs with 64 images each.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64.py'

train_pipeline = [
    dict(type='LoadNamedImage'),
    dict(type='RandomResizedCrop', scale=224),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadNamedImage'),
    dict(type='ResizeEdge', scale=256, edge='short'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
loader = dict(
    collate_fn=dict(type='default_collate'), persistent_workers=True, pin_memory=True)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline), **loader)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline), **loader)
test_dataloader = val_dataloader
