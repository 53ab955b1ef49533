_base_ = 'rla_mbv2.py'

backbone = dict(attention=dict(type='SE'))
