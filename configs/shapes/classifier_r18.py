# The plain twin of classifier_rla_r18.py: weights for a warm start.
_base_ = 'classifier_rla_r18.py'

model = dict(
    backbone=dict(rla=None, out_hidden=False),
    neck=dict(_delete_=True, type='GlobalAveragePooling'),
    head=dict(in_channels=256))
