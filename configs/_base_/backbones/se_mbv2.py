_base_ = 'mbv2.py'

backbone = dict(attention=dict(type='SE'))
