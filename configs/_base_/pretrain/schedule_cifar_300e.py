# The paper's recipe for CIFAR: 300 epochs, Nesterov SGD 0.1 for a batch of 128,
# divided by 10 at 150 and 225.
_base_ = 'schedule_120e.py'

optim_wrapper = dict(optimizer=dict(nesterov=True))
param_scheduler = dict(milestones=[150, 225])
train_cfg = dict(max_epochs=300)
auto_scale_lr = dict(base_batch_size=128)
