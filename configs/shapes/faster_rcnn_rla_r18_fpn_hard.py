# The harder set, where only the outline tells the class:
# `python tools/make_shapes.py data/shapes_hard --no-class-hues`.
_base_ = 'faster_rcnn_rla_r18_fpn.py'

data_root = 'data/shapes_hard/'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
