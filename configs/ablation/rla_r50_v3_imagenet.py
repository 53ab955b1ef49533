# The paper's ablation (g), and what the authors' published weights need.
_base_ = '../pretrain/rla_v3_r50_imagenet.py'
