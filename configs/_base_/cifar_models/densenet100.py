# DenseNet-BC-100 with k = 12 (section 3.2); `sharing` is None, 'lag' or 'ordinal'.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='CifarDenseNet', depth=100, growth=12, sharing=None),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=342,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
