_base_ = 'resnet.py'

backbone = dict(depth=152, rla=None, attention=dict(type='ECA'))
