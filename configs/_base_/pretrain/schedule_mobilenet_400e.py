# The paper's recipe for MobileNetV2: 400 epochs, SGD 0.045 for a batch of 96,
# times 0.98 an epoch.
_base_ = 'schedule_120e.py'

optim_wrapper = dict(optimizer=dict(lr=0.045, weight_decay=4e-5))
param_scheduler = dict(
    _delete_=True, type='StepLR', by_epoch=True, step_size=1, gamma=0.98)
train_cfg = dict(max_epochs=400)
auto_scale_lr = dict(base_batch_size=96)
