# In MobileNetV2 the last convolution already sees the hidden state, so RLA and
# plain networks have the same neck and head.
_base_ = 'classifier.py'

model = dict(
    backbone=dict(_delete_=True, type='RLAMobileNetV2', out_indices=(7, ), norm_eval=False),
    head=dict(in_channels=1280))
