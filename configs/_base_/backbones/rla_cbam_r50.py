_base_ = 'rla_r50.py'

backbone = dict(attention=dict(type='CBAM'))
