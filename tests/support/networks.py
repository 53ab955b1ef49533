"""Values and results of test networks."""
from typing import Dict

import torch
from torch import nn

from mmrla.models import (
    VARIANTS,
    RLACifarResNet,
    RLAMobileNetV2,
    RLAResNet,
    RLAResNeXt,
    RLAXception,
)

_SMALL = dict(base_channels=4, norm_eval=False)
_RLA = dict(channels=3)
# Functions that build a network of every kind, each with all forms of its layers.
SMALL_NETWORKS = {
    **{f'{variant} {depth}': lambda variant=variant, depth=depth: RLAResNet(
        depth, **_SMALL, rla=dict(_RLA, variant=variant))
       for variant in VARIANTS for depth in (18, 50)},
    **{name: lambda arguments=arguments: RLAResNet(50, **{**_SMALL, 'rla': _RLA, **arguments})
       for name, arguments in {
           'ECA': dict(attention=dict(type='ECA')),
           'SE': dict(attention=dict(type='SE', ratio=4)),
           'caffe': dict(style='caffe', out_hidden=True),
           'stride 3': dict(strides=(1, 3, 1, 2), avg_down=True),
           'dilated': dict(strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)),
           'frozen': dict(frozen_stages=2),
           'group norm': dict(norm_cfg=dict(type='GN', num_groups=1)),
           'standardised weights': dict(conv_cfg=dict(type='ConvWS')),
           'plugin': dict(plugins=[dict(cfg=dict(type='ContextBlock', ratio=0.25),
                                        position='after_conv3')]),
           'unshared': dict(rla=dict(_RLA, shared=False)),
           'no exchange': dict(rla=dict(_RLA, exchange=False), out_hidden=True),
           'no exchange v4': dict(rla=dict(_RLA, exchange=False, variant='v4'), out_hidden=True),
           'LSTM': dict(rla=dict(_RLA, cell='lstm')),
           'GRU': dict(rla=dict(_RLA, cell='gru')),
           'post-act': dict(rla=dict(_RLA, pre_act=False)),
           'recomputed': dict(with_cp=True, norm_eval=True),
           'deep stem': dict(deep_stem=True, norm_eval=True),
       }.items()},
    'ResNeXt': lambda: RLAResNeXt(depth=50, groups=2, base_width=4, **_SMALL, rla=_RLA),
    'MobileNetV2': lambda: RLAMobileNetV2(widen_factor=0.25, rla=_RLA),
    'CIFAR': lambda: RLACifarResNet(29, bottleneck=True, base_channels=4, rla=_RLA),
    'Xception': lambda: RLAXception(base_channels=2, num_middle=1, rla=_RLA),
}


def randomise(module: nn.Module) -> nn.Module:
    """Fill all parameters and buffers with random values.

    No weight is zero and no running mean is zero, so that every term of a
    computation affects the output.
    """
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith('running_var'):
                value.uniform_(0.5, 1.5)
            elif name.endswith('num_batches_tracked'):
                value.zero_()
            elif value.dim() < 2:
                value.normal_(0.5 if name.endswith('weight') else 0.0, 0.2)
            else:
                value.normal_(0, value[0].numel()**-0.5)
    return module


def results(net: nn.Module, image: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Outputs, gradients and buffers of one step."""
    net.zero_grad()
    outs = net(image)
    sum(out.sin().sum() for out in outs).backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    return {**{f'out {i}': out.detach() for i, out in enumerate(outs)}, **gradients, **buffers}
