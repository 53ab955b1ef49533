_base_ = 'resnet.py'

backbone = dict(depth=101, rla=dict(channels=32, variant='v1'))
