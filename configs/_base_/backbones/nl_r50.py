# One, in the last but one block of the third stage: where Wang et al. have it, but
# on the residual branch.
_base_ = 'r50.py'

backbone = dict(attention=dict(type='NL', stages=(False, False, True, False), blocks=(-2, )))
