_base_ = 'rla_eca_r50.py'

backbone = dict(rla=dict(variant='v3'))
