# faster_rcnn_rla_r18_fpn.py with channel attention.
_base_ = 'faster_rcnn_rla_r18_fpn.py'

model = dict(backbone=dict(attention=dict(type='ECA')))
