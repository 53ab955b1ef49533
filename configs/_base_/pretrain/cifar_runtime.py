# The checkpoint that is best on the validation images is kept beside the last.
_base_ = 'runtime.py'

default_hooks = dict(
    checkpoint=dict(interval=10, max_keep_ckpts=1, save_best='accuracy/top1', rule='greater'))
