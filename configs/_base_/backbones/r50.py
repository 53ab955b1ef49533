backbone = dict(type='RLAResNet', depth=50, rla=None)
