_base_ = 'rla_x101_32x4d.py'

backbone = dict(attention=dict(type='ECA'))
