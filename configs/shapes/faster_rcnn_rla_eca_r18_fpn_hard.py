_base_ = 'faster_rcnn_rla_r18_fpn_hard.py'

model = dict(backbone=dict(attention=dict(type='ECA')))
