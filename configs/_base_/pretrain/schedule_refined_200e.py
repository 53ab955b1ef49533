# The refined recipe of appendix B.2.2: 200 epochs of cosine after 5 of warm-up;
# label smoothing and mixup are the model's (refined_classifier.py).
_base_ = 'schedule_120e.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=5,
         convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', T_max=195, by_epoch=True, begin=5, end=200),
]
train_cfg = dict(max_epochs=200)
