_base_ = 'rla_r101.py'

backbone = dict(rla=dict(variant='v3'))
