backbone = dict(type='RLAMobileNetV2', rla=None)
