_base_ = 'resnet.py'

backbone = dict(depth=50, rla=dict(channels=32, variant='v1'))
