_base_ = 'rla_eca_r101.py'

backbone = dict(rla=dict(variant='v3'))
