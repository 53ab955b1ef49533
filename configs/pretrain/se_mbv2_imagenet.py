_base_ = [
    '../_base_/pretrain/mobilenet_classifier.py',
    '../_base_/backbones/se_mbv2.py',
    '../_base_/pretrain/imagenet.py',
    '../_base_/pretrain/schedule_mobilenet_400e.py',
    '../_base_/pretrain/runtime.py',
]

model = dict(backbone=_base_.backbone)
train_dataloader = dict(batch_size=48)  # 2 GPUs: the paper's batch of 96
