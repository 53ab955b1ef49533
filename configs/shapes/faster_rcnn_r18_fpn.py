# The plain twin of faster_rcnn_rla_r18_fpn.py.
_base_ = 'faster_rcnn_rla_r18_fpn.py'

model = dict(backbone=dict(rla=None))
