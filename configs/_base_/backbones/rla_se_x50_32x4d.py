_base_ = 'rla_x50_32x4d.py'

backbone = dict(attention=dict(type='SE'))
