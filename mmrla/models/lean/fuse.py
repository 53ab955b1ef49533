"""The fused form of a model for inference: fewer layers, the same outputs.

    from mmrla.models.lean.fuse import fuse
    fuse(model)     # in place; the model can no longer be trained as before

- Batch norms are folded into the convolutions before them. mmcv's ``fuse_conv_bn`` does
  this by the order of a module's layers. It does not know that a block's first norm also
  acts on the term of the hidden path; here the reader is scaled together with the
  block's convolution.
- ``W y``, which the hidden path computes from a block's residual y, is computed from
  the narrow input r of the block's last convolution C, since
  ``W (C r + b) = (W C) r + W b``.
- A channel gate (SE, ECA) multiplies the weights of the convolution before it instead of
  the convolution's output (:mod:`~mmrla.models.lean.gated`).
- On a CPU the weights are in channels_last (:mod:`~mmrla.models.lean.cpu`).

The other layers stay as they are: norms other than batch norm, convolutions that
compute their weights (deformable, standardised), other attention. The variants that read
x' or the shortcut read them.
"""
from typing import List, Sequence, Set

import torch
from mmcv.cnn import ConvModule
from mmengine.model import ModuleList, is_model_wrapper
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmrla.models.backbones.base import RLABackbone
from mmrla.models.backbones.blocks import RLABlock
from mmrla.models.rla import RLAStage

from .folding import fold
from .forms import is_gate
from .gated import is_pointwise


@torch.no_grad()
def fuse(model: nn.Module) -> nn.Module:
    """Fuse a model for inference, in place.

    The ``state_dict`` of a fused model fits another fused model of the same config:
    ``fuse(MODELS.build(cfg)).load_state_dict(torch.load(path))``.

    Args:
        model: A detector, classifier or backbone. Batch norms outside of an RLA
            backbone are folded too.

    Returns:
        nn.Module: The same model, in eval mode.
    """
    if is_model_wrapper(model):
        fuse(model.module)
        return model
    model.eval()
    backbones = _rla_backbones(model)
    for backbone in backbones:
        for conv, norm, reader in list(backbone.joints()):
            if _folds(conv, norm) and _is_plain(reader):
                reader.weight.mul_(_fold_in_place(conv, norm).view(-1, 1, 1, 1))
                _replace(backbone, norm, nn.Identity())
    _fold_neighbours(model, {joint.norm for backbone in backbones for joint in backbone.joints()})
    hidden = [stage for backbone in backbones for stage in backbone.hidden_stages()]
    for stage, blocks in hidden:
        _compose(stage, blocks)
    with_hidden_path = {block for _, blocks in hidden for block in blocks}
    for block in set(model.modules()) - with_hidden_path:
        if _is_folded(block):
            block.forms = 'fused'
    for backbone in backbones:
        if backbone.takes_any_layout and backbone.forms != 'plain' and _is_on_cpu(backbone):
            backbone.to(memory_format=torch.channels_last)  # the layout of inference there
    return model


def _rla_backbones(model: nn.Module) -> List[RLABackbone]:
    """The backbones with a hidden path."""
    return [module for module in model.modules()
            if isinstance(module, RLABackbone) and module.rla is not None]


def _is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == 'cpu' for parameter in model.parameters())


def _is_plain(conv: nn.Module) -> bool:
    """Whether a convolution's output is linear in its weight."""
    return type(conv) is nn.Conv2d


def _folds(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether a norm can be folded into the convolution before it.

    A norm whose class does more than normalise cannot, such as timm's norms with an activation.
    """
    return (_is_plain(conv) and isinstance(norm, _BatchNorm) and norm.running_mean is not None
            and type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward))


def _fold_in_place(conv: nn.Conv2d, norm: _BatchNorm) -> Tensor:
    """Fold a norm into the convolution before it; returns the scale, of shape (C,)."""
    weight, bias, scale = fold(conv, norm)
    conv.weight.copy_(weight)
    conv.bias = nn.Parameter(bias, conv.weight.requires_grad)
    return scale


def _fold_neighbours(module: nn.Module, excluded: Set[nn.Module]) -> None:
    """Fold every norm that directly follows a convolution, as mmcv does.

    Args:
        module: It is changed in place.
        excluded: Norms whose input is not only the output of the convolution.
    """
    if isinstance(module, ConvModule) and module.order != ('conv', 'norm', 'act'):
        return
    before = None
    for name, child in list(module.named_children()):
        if _folds(before, child) and child not in excluded:
            _fold_in_place(before, child)
            setattr(module, name, nn.Identity())
        else:
            _fold_neighbours(child, excluded)
        before = child


def _replace(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever it is."""
    for parent in root.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)


def _is_folded(block: nn.Module) -> bool:
    """Whether a block is convolutions with folded norms, and a channel gate or nothing."""
    if not isinstance(block, RLABlock) or block.forms == 'fused' or not block.branch():
        return False
    return (all(type(norm) is nn.Identity for _, norm in block.branch())
            and (not block.tail() or is_gate(block.tail())))


def _compose(stage: RLAStage, blocks: Sequence[nn.Module]) -> None:
    """Let the stage read the input of a block's last convolution where it reads y.

    A block with a channel gate composes ``W y`` when it is called, from the factors of
    each image.
    """
    compress = [stage.of_block(stage.compress, t) for t in range(len(stage.norms))]
    for t, block in enumerate(blocks):
        if not _is_folded(block):
            continue
        if t < len(compress) and stage.variant.source == 'residual' and not block.tail():
            last = block.branch()[-1][0]
            if not (is_pointwise(last) and _is_plain(compress[t])):
                continue
            compress[t] = _composed(compress[t], last)
        block.forms = 'fused'
    if any(each is not stage.of_block(stage.compress, t) for t, each in enumerate(compress)):
        stage.compress = ModuleList(compress)


def _composed(compress: nn.Conv2d, last: nn.Conv2d) -> nn.Conv2d:
    """``W (C r + b) = (W C) r + W b``."""
    outer, inner = compress.weight.flatten(1), last.weight.flatten(1)
    conv = nn.Conv2d(last.in_channels, compress.out_channels, 1,
                     device=outer.device, dtype=outer.dtype)
    conv.weight.copy_((outer @ inner)[..., None, None])
    conv.bias.copy_(outer @ last.bias)
    return conv.eval().requires_grad_(outer.requires_grad)
