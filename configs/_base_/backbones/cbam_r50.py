_base_ = 'r50.py'

backbone = dict(attention=dict(type='CBAM'))
