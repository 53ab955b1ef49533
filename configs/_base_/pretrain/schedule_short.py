# One epoch of AdamW for a look at what a network learns, not for its accuracy: on
# 15,000 images of CIFAR-10 a DenseNet-BC-100 takes a quarter of an hour of one CPU core.
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05))
param_scheduler = dict(
    type='CosineAnnealingLR', by_epoch=True, T_max=1, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=1, val_interval=1)
val_cfg = dict()
test_cfg = dict()
