backbone = dict(type='RLAResNet', depth=101, rla=dict(channels=32, variant='v1'))
