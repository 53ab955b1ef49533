"""The form of a model for inference: fewer layers, the same outputs.

    from .fuse import fuse
    fuse(model)     # in place, and for good: the model no longer trains as before

- Batch norms are folded into the convolutions they follow. mmcv's
  ``fuse_conv_bn`` does that by the order of a module's layers, and would miss that
  a block's first norm also acts on what the hidden path adds; here the
  hidden path's reader is scaled with the block's convolution.
- ``W y``, what the hidden path takes of a block, is read from the narrow input r of
  the block's last convolution C, since ``W (C r + b) = (W C) r + W b``.

Whatever does not fit stays as it is: other norms than batch norm, convolutions with
weights of their own making (deformable, standardised), attention behind the last
norm, the variants that read x' or the shortcut.
"""
from typing import Iterator, List, Optional, Sequence, Tuple

import torch
from mmcv.cnn import ConvModule
from mmengine.model import ModuleList, is_model_wrapper
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmrla.models.backbones.base import RLABackbone
from mmrla.models.backbones.resnet import Bottleneck
from mmrla.models.rla import RLAStage, State, last_convolution
from mmrla.models.with_rla import WithRLA


@torch.no_grad()
def fuse(model: nn.Module) -> nn.Module:
    """Bring a model into its form for inference, in place.

    A fused model's ``state_dict`` fits another model of the same config that was
    fused: ``fuse(MODELS.build(cfg)).load_state_dict(torch.load(path))``.

    Args:
        model: A detector, classifier or backbone; parts that have nothing to
            do with mmrla get their batch norms folded too.

    Returns:
        nn.Module: The same model, in eval mode.
    """
    if is_model_wrapper(model):
        fuse(model.module)
        return model
    model.eval()
    for backbone in _rla_backbones(model):
        for conv, norm, reader in _joints(backbone):
            if _folds(conv, norm) and _is_plain(reader):
                scale = _fold(conv, norm)
                reader.weight.mul_(scale.view(-1, 1, 1, 1))
                _replace(backbone, norm, nn.Identity())
    _fold_neighbours(model, {norm for backbone in _rla_backbones(model)
                             for _, norm, _ in _joints(backbone)})
    for backbone in _rla_backbones(model):
        for stage, blocks in backbone.hidden_stages():
            if _composes(stage, blocks):
                _compose(stage, blocks)
    return model


def _rla_backbones(model: nn.Module) -> List[nn.Module]:
    """The modules with a hidden path."""
    return [module for module in model.modules()
            if isinstance(module, RLABackbone) and module.rla is not None]


def _joints(backbone: nn.Module) -> Iterator[Tuple[nn.Module, nn.Module, nn.Module]]:
    """Where ``conv(x) + reader(h)`` enters a norm: the three of each block."""
    if isinstance(backbone, WithRLA):
        yield from backbone.joints()
        return
    for stage, blocks in backbone.hidden_stages():
        for block, reader in zip(blocks, stage.readers, strict=False):
            yield *block.joint(), last_convolution(reader)
    if getattr(backbone, 'conv2_reader', None) is not None:
        yield backbone.conv2.conv, backbone.conv2.norm, backbone.conv2_reader.conv


def _is_plain(conv: Optional[nn.Module]) -> bool:
    """Whether a convolution's output is linear in the weight that it has."""
    return type(conv) is nn.Conv2d


def _folds(conv: Optional[nn.Module], norm: nn.Module) -> bool:
    """Whether a norm can become a part of a convolution.

    Not if its class does more than normalise, as timm's norms with an activation do.
    """
    return (_is_plain(conv) and isinstance(norm, _BatchNorm) and norm.running_mean is not None
            and type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward))


def _fold(conv: nn.Conv2d, norm: _BatchNorm) -> Tensor:
    """Put a norm into the convolution before it; its factor, of shape (C,)."""
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = -norm.running_mean if conv.bias is None else conv.bias - norm.running_mean
    bias = bias * scale if norm.bias is None else torch.addcmul(norm.bias, bias, scale)
    conv.weight.mul_(scale.view(-1, 1, 1, 1))
    conv.bias = nn.Parameter(bias.to(conv.weight.dtype), conv.weight.requires_grad)
    return scale


def _fold_neighbours(module: nn.Module, spared: set) -> None:
    """Fold every norm that stands right behind a convolution, as mmcv does.

    Args:
        module: It is changed in place.
        spared: Norms that see more than the convolution before them.
    """
    if isinstance(module, ConvModule) and module.order != ('conv', 'norm', 'act'):
        return
    before = None
    for name, child in list(module.named_children()):
        if _folds(before, child) and child not in spared:
            _fold(before, child)
            setattr(module, name, nn.Identity())
        else:
            _fold_neighbours(child, spared)
        before = child


def _replace(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, wherever that is."""
    for parent in root.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)


class FusedStage(RLAStage):
    """The hidden path along bottlenecks without norms, with W C in the place of W."""

    def step(self, t: int, block: Bottleneck, x: Tensor, state: State) -> Tuple[Tensor, State]:
        """One block of both paths: ``(x, h)`` becomes ``(x', h')``."""
        r = block.conv1(x).add_(self.readers[t](state[0])).relu_()
        r = block.conv2(r).relu_()
        shortcut = x if block.downsample is None else block.downsample(x)
        x = block.conv3(r).add_(shortcut).relu_()
        return x, self.update(t, state, self.compress[t](r)) if t < len(self.norms) else state


def _composes(stage: RLAStage, blocks: Sequence[nn.Module]) -> bool:
    """Whether a stage can become a :class:`FusedStage`."""
    if type(stage) is not RLAStage or not stage.config.exchange or not stage.norms:
        return False
    compress = stage.compress if isinstance(stage.compress, ModuleList) else [stage.compress]
    return (stage.variant.source == 'residual' and all(map(_is_folded, blocks))
            and all(map(_is_plain, [*compress, *stage.readers])))


def _is_folded(block: nn.Module) -> bool:
    """Whether a block is three convolutions, their norms folded, and nothing else."""
    return (type(block) is Bottleneck and block.ends_in_norm()
            and not any(block.plugin_names.values()) and _is_plain(block.conv3)
            and all(type(norm) is nn.Identity for norm in (block.norm1, block.norm2, block.norm3)))


def _compose(stage: RLAStage, blocks: Sequence[Bottleneck]) -> None:
    """Let the hidden path read the input of each block's last convolution."""
    stage.compress = ModuleList([
        _composed(stage.of_block(stage.compress, t), block.conv3)
        for t, block in enumerate(list(blocks)[:len(stage.norms)])])
    stage.__class__ = FusedStage  # its parts stay what they are, under their names


def _composed(compress: nn.Conv2d, last: nn.Conv2d) -> nn.Conv2d:
    """``W (C r + b) = (W C) r + W b``."""
    outer, inner = compress.weight.flatten(1), last.weight.flatten(1)
    conv = nn.Conv2d(last.in_channels, compress.out_channels, 1,
                     device=outer.device, dtype=outer.dtype)
    conv.weight.copy_((outer @ inner)[..., None, None])
    conv.bias.copy_(outer @ last.bias)
    return conv.eval().requires_grad_(outer.requires_grad)
