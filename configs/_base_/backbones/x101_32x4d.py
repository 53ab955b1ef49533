backbone = dict(type='RLAResNeXt', depth=101, groups=32, base_width=4, rla=None)
