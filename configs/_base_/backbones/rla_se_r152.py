_base_ = 'rla_r152.py'

backbone = dict(attention=dict(type='SE'))
