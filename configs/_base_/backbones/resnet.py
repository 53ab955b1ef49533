# mmdet's settings for fine-tuning from ImageNet. A network that starts from
# random values wants frozen_stages=-1 and norm_eval=False.
backbone = dict(
    type='RLAResNet',
    norm_cfg=dict(type='BN', requires_grad=True),
    frozen_stages=1,
    norm_eval=True)
