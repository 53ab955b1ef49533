# The paper's recipe for ResNets: 120 epochs, SGD 0.1 for a batch of 256, divided
# by 10 every 30 epochs. Another batch scales the learning rate by itself.
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=1e-4))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[30, 60, 90], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=120, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=True, base_batch_size=256)
