# The paper's schedule: 12 epochs, SGD 0.01 for a batch of 8, drops after 8 and
# 11. Another batch (GPUs x batch_size) scales the learning rate by itself.
_base_ = 'mmdet::_base_/schedules/schedule_1x.py'

optim_wrapper = dict(optimizer=dict(lr=0.01))
auto_scale_lr = dict(enable=True, base_batch_size=8)
