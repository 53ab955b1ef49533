_base_ = 'rla_r50.py'

backbone = dict(rla=dict(variant='v3'))
