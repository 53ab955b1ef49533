backbone = dict(type='RLAResNet', depth=101, rla=None)
