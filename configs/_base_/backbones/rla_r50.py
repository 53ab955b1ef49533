backbone = dict(type='RLAResNet', depth=50, rla=dict(channels=32, variant='v1'))
