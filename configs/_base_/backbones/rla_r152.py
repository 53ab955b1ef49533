backbone = dict(type='RLAResNet', depth=152, rla=dict(channels=32, variant='v1'))
