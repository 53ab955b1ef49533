_base_ = ['_base_/detectors/faster_rcnn.py', '_base_/backbones/rla_mbv2.py']

# The layers at strides 4, 8, 16 and 32.
model = dict(
    backbone=dict(out_indices=(1, 2, 4, 6), **_base_.backbone),
    neck=dict(in_channels=[24, 32, 96, 320]))
