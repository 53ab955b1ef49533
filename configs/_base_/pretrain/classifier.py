# A plain ResNet's classifier; a file of _base_/backbones says which ResNet.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='RLAResNet', out_indices=(3, ), norm_eval=False),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=2048,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        topk=(1, 5)))
