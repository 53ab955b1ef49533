backbone = dict(type='RLAMobileNetV2', rla=dict(channels=32, variant='v1'))
