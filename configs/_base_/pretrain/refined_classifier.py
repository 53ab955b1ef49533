# Label smoothing 0.1 and mixup 0.2 of appendix B.2.2, and the architecture of
# ResNet-D: deep stem, average-pooled shortcuts; `style='pytorch'` has the stride
# in the 3x3 convolution already.
_base_ = 'rla_classifier.py'

model = dict(
    backbone=dict(deep_stem=True, avg_down=True),
    head=dict(loss=dict(
        _delete_=True, type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=dict(type='Mixup', alpha=0.2)))
