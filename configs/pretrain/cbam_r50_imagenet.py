_base_ = [
    '../_base_/pretrain/classifier.py',
    '../_base_/backbones/cbam_r50.py',
    '../_base_/pretrain/imagenet.py',
    '../_base_/pretrain/schedule_120e.py',
    '../_base_/pretrain/runtime.py',
]

model = dict(backbone=_base_.backbone)
