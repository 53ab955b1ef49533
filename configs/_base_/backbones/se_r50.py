_base_ = 'resnet.py'

backbone = dict(depth=50, rla=None, attention=dict(type='SE'))
