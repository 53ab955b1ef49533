_base_ = [
    '../_base_/pretrain/refined_classifier.py',
    '../_base_/backbones/rla_r152.py',
    '../_base_/pretrain/imagenet.py',
    '../_base_/pretrain/schedule_refined_200e.py',
    '../_base_/pretrain/runtime.py',
]

model = dict(backbone=_base_.backbone)
