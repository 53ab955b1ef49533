_base_ = 'r101.py'

backbone = dict(attention=dict(type='CBAM'))
