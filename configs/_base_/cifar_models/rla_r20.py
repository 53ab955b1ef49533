_base_ = 'r20.py'

model = dict(
    backbone=dict(rla=dict(_delete_=True, channels=4, variant='v1'), out_hidden=True),
    neck=dict(_delete_=True, type='RLAPooling', channels=4),
    head=dict(in_channels=64 + 4))
