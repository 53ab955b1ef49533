_base_ = 'r152.py'

backbone = dict(attention=dict(type='ECA'))
