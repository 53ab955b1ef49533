backbone = dict(type='RLAResNet', depth=152, rla=None)
