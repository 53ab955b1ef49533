# The classifier sees the last hidden state behind the last feature map.
_base_ = 'classifier.py'

model = dict(
    backbone=dict(out_hidden=True),
    neck=dict(_delete_=True, type='RLAPooling', channels=32),
    head=dict(in_channels=2048 + 32))
