# In every block of the last three stages, as GCNet has it.
_base_ = 'r101.py'

backbone = dict(attention=dict(type='GC', stages=(False, True, True, True)))
