# CIFAR-100 in data/cifar100: 45,000 images to train on, 5,000 to choose the best
# checkpoint by, and the test set, which tools/test.py reports.
_base_ = 'mmpretrain::_base_/datasets/cifar100_bs16.py'

loader = dict(
    batch_size=128,
    collate_fn=dict(type='default_collate'),
    persistent_workers=True,
    pin_memory=True)
train_dataloader = dict(dataset=dict(indices=45000), **loader)
val_dataloader = dict(
    dataset=dict(split='train', indices=-5000, pipeline=_base_.test_pipeline), **loader)
test_dataloader = loader
