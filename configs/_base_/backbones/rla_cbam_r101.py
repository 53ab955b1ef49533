_base_ = 'rla_r101.py'

backbone = dict(attention=dict(type='CBAM'))
