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

The other layers stay as they are: norms other than batch norm, convolutions that
compute their weights (deformable, standardised), attention after the last norm, the
variants that read x' or the shortcut.
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
    for backbone in backbones:
        for stage, blocks in backbone.hidden_stages():
            if _composes(stage, blocks):
                _compose(stage, blocks)
    return model


def _rla_backbones(model: nn.Module) -> List[RLABackbone]:
    """The backbones with a hidden path."""
    return [module for module in model.modules()
            if isinstance(module, RLABackbone) and module.rla is not None]


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


def _composes(stage: RLAStage, blocks: Sequence[nn.Module]) -> bool:
    """Whether the stage can compute ``W y`` from the input of each last convolution."""
    if not stage.norms or stage.variant.source != 'residual':
        return False
    compress = stage.compress if isinstance(stage.compress, ModuleList) else [stage.compress]
    return all(map(_is_plain, compress)) and all(map(_ends_in_pointwise_conv, blocks))


def _ends_in_pointwise_conv(block: nn.Module) -> bool:
    """Whether a block is convolutions with folded norms, the last of size and stride 1."""
    branch = block.branch() if isinstance(block, RLABlock) else []
    if not branch or block.forms == 'fused':
        return False
    last = branch[-1][0]
    return (all(type(norm) is nn.Identity for _, norm in branch) and _is_plain(last)
            and last.kernel_size == last.stride == (1, 1) and last.groups == 1)


def _compose(stage: RLAStage, blocks: Sequence[nn.Module]) -> None:
    """Let the stage read the input of each block's last convolution."""
    stage.compress = ModuleList([
        _composed(stage.of_block(stage.compress, t), block.branch()[-1][0])
        for t, block in enumerate(list(blocks)[:len(stage.norms)])])
    for block in blocks:
        block.forms = 'fused'


def _composed(compress: nn.Conv2d, last: nn.Conv2d) -> nn.Conv2d:
    """``W (C r + b) = (W C) r + W b``."""
    outer, inner = compress.weight.flatten(1), last.weight.flatten(1)
    conv = nn.Conv2d(last.in_channels, compress.out_channels, 1,
                     device=outer.device, dtype=outer.dtype)
    conv.weight.copy_((outer @ inner)[..., None, None])
    conv.bias.copy_(outer @ last.bias)
    return conv.eval().requires_grad_(outer.requires_grad)
