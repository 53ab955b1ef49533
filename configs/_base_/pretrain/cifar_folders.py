# CIFAR-10's images, or others of their size, in class folders:
# data/cifar10_folders/{train,test}/{class}/.
data_root = 'data/cifar10_folders/'
data_preprocessor = dict(
    num_classes=10,
    mean=[125.307, 122.961, 113.8575],
    std=[51.5865, 50.847, 51.255],
    to_rgb=True)
train_pipeline = [
    dict(type='LoadNamedImage'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadNamedImage'), dict(type='PackInputs')]
loader = dict(
    batch_size=128,
    num_workers=2,
    collate_fn=dict(type='default_collate'),
    persistent_workers=True)
train_dataloader = dict(
    dataset=dict(type='ClassFolders', data_root=data_root + 'train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True),
    **loader)
val_dataloader = dict(
    dataset=dict(type='ClassFolders', data_root=data_root + 'test', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False),
    **loader)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
