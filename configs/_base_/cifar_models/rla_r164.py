_base_ = 'r164.py'

model = dict(
    backbone=dict(rla=dict(_delete_=True, channels=12, variant='v1'), out_hidden=True),
    neck=dict(_delete_=True, type='RLAPooling', channels=12),
    head=dict(in_channels=256 + 12))
