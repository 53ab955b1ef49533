_base_ = 'resnet.py'

backbone = dict(depth=101, rla=None, attention=dict(type='ECA'))
