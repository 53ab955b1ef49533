"""Recurrent layer aggregation on any residual backbone.

:class:`WithRLA` adds the hidden path of :mod:`mmrla.models.rla` to a network that
knows nothing of it. :mod:`mmrla.models.residual_blocks` finds the blocks. Then

- a forward hook on a block's entry adds ``W_h h`` to the output of that
  convolution: ``conv(Concat(x, h)) = W_x x + W_h h``;
- a forward hook on the module that returns y compresses y for the update;
- the block's ``forward`` is replaced by a :class:`HiddenStep`, which calls the
  original between reading and updating h.

h lives in a :class:`Pass`, for the time of one call of the network.
"""
import functools
import logging
import threading
import types
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_conv_layer
from mmengine.logging import print_log
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmrla.models.backbones.base import RLABackbone
from mmrla.models.dry_run import CHECKPOINTING
from mmrla.models.residual_blocks import ResidualBlock, find_residual_blocks
from mmrla.models.rla import VARIANTS, RLAConfig, RLAStage, State, last_convolution, reader_like

Size = Tuple[int, int]
# W_h = 0: the network computes what it computed without a hidden path.
INIT_CFG = dict(type='Kaiming', layer='Conv2d',
                override=dict(type='Constant', name='readers', val=0))


class Pass(threading.local):
    """What one forward pass carries from block to block, in each thread.

    Attributes:
        running: Whether the network is running.
        state: The hidden state, None before the first block.
        step: The step whose block is running.
        term: ``W_h h`` for that block's entry, until it is added.
        new: What that block contributes to the update.
    """
    running: bool = False
    state: Optional[State] = None
    step: Optional['HiddenStep'] = None
    term: Optional[Tensor] = None
    new: Optional[Tensor] = None

    def __reduce__(self) -> tuple:
        return Pass, ()  # a copy of a network is not running


def pool_to(h: Tensor, stride: Size, size: Size) -> Tensor:
    """Bring h to a lower resolution.

    Args:
        h: Shape (N, k, H, W).
        stride: By which H and W are divided.
        size: (H', W'), both rounded up or down. The last window of a side that
            is rounded up averages the pixels that it has.
    """
    if tuple(stride) != (1, 1):
        h = F.avg_pool2d(h, stride, stride, ceil_mode=True, count_include_pad=False)
    return h if h.shape[2:] == size else h[:, :, :size[0], :size[1]]


class HiddenStep:
    """One residual block of both paths, in place of the block's ``forward``.

    Args:
        module: The block.
        block: Its parts.
        stage: The hidden path along the block's stage.
        t: The block's position in the stage, from 0.
        before: Stride between the previous block's output and the block's input.
        current: The network's pass.
        recompute: Whether activations are recomputed in backward.
    """

    def __init__(self, module: nn.Module, block: ResidualBlock, stage: RLAStage, t: int,
                 before: Size, current: Pass, recompute: bool) -> None:
        self.module, self.block, self.stage, self.t = module, block, stage, t
        self.before, self.after = before, stride_between(block.in_size, block.out_size)
        self.current, self.recompute = current, recompute
        self.updates = t < len(stage.norms)
        self.watched = self._watched()
        self.hooked: Dict[str, nn.Module] = {}
        module.forward = self
        self.attach()

    def _watched(self) -> Optional[str]:
        """The part that is compressed as soon as it is known; None for x' alone."""
        source = self.stage.variant.source
        if not self.updates or source == 'out':
            return None
        return 'branch' if source == 'residual' and self.block.branch is not None else 'shortcut'

    def attach(self) -> None:
        """Put the hooks on the block's parts, also on those replaced since."""
        hooks = {self.block.entry: self.add_term} if self.stage.config.exchange else {}
        name = getattr(self.block, self.watched) if self.watched else ''
        if name:
            hooks[name] = self.compress
        for name, hook in hooks.items():
            part = self.module.get_submodule(name)
            if self.hooked.get(name) is not part:
                part.register_forward_hook(hook)
                self.hooked[name] = part

    def add_term(self, module: nn.Module, args: tuple, out: Tensor) -> Optional[Tensor]:
        """Hook of the entry: ``W_x x + W_h h``."""
        term = self.current.term
        if self.current.step is not self or term is None:
            return None
        self.current.term = None
        return out.add_(term)

    def compress(self, module: nn.Module, args: tuple, out: Tensor) -> Optional[Tensor]:
        """Hook of the branch or the shortcut: compress what it returned."""
        if self.current.step is not self:
            return None
        self.current.new = self._compressed(out)
        # The original would not survive an addition in place until backward.
        return out.clone() if self.watched in self.block.changed and out.requires_grad else None

    def _compressed(self, feature: Tensor) -> Tensor:
        return self.stage.of_block(self.stage.compress, self.t)(feature)

    def __call__(self, x: Tensor, *args, **kwargs) -> Tensor:
        """Run the block, with the hidden path if the network is running."""
        current = self.current
        if not current.running:
            self._check_not_recomputed()
            return self._forward(x, *args, **kwargs)
        state = self.stage.initial_state(x) if current.state is None else current.state
        if self.recompute and torch.is_grad_enabled():
            x, current.state = checkpoint(
                self.step, x, state, *args, use_reentrant=False, **kwargs)
        else:
            x, current.state = self.step(x, state, *args, **kwargs)
        return x

    def _forward(self, x: Tensor, *args, **kwargs) -> Tensor:
        """The block's own forward."""
        return type(self.module).forward(self.module, x, *args, **kwargs)

    def _check_not_recomputed(self) -> None:
        """Stop where a recomputation would leave out the hidden path."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                f'{self.block.name} is recomputed in backward by a checkpoint around it, which '
                'does not keep the hidden state; checkpoint the whole backbone, or set with_cp '
                'of the network inside WithRLA, which recomputes each block with its h')

    def step(self, x: Tensor, state: State, *args, **kwargs) -> Tuple[Tensor, State]:
        """One block of both paths: ``(x, h)`` becomes ``(x', h')``.

        Args:
            x: Shape (N, C_in, H, W).
            state: h, and c of a ConvLSTM, each of shape (N, k, H0, W0).
            *args: Further arguments of the block.
            **kwargs: As ``args``.

        Returns:
            tuple[Tensor, tuple[Tensor]]: x' of shape (N, C, H', W') and the new
            state.
        """
        stage, current = self.stage, self.current
        state = tuple(pool_to(part, self.before, x.shape[2:]) for part in state)
        try:
            current.step = self
            if stage.config.exchange:
                current.term = stage.readers[self.t](state[0])
            if self.watched and getattr(self.block, self.watched) == '':
                current.new = self._compressed(x)
            out = self._forward(x, *args, **kwargs)
            if current.term is not None:
                self._stop_without(self.block.entry)
            if self.updates:
                state = self._updated(state, self._new(out))
        finally:
            current.step = current.term = current.new = None
        return out, state

    def _new(self, out: Tensor) -> Tensor:
        """``g1`` of what the variant takes from the block."""
        if self.watched is None:
            return self._compressed(out)
        new = self.current.new
        if new is None:
            self._stop_without(getattr(self.block, self.watched))
        if self.watched == 'shortcut' and self.stage.variant.source == 'residual':
            return self._compressed(out) - new  # W y = W (y + shortcut) - W shortcut
        return new

    def _updated(self, state: State, new: Tensor) -> State:
        state = tuple(pool_to(part, self.after, new.shape[2:]) for part in state)
        return self.stage.update(self.t, state, new)

    def _stop_without(self, name: str) -> None:
        raise RuntimeError(
            f'{self.block.name} ran without calling its {name}, where the hidden path joins it. '
            'Something bypasses that module, such as a merged convolution and norm '
            '(efficient_conv_bn_eval); turn that off for this backbone')


def stride_between(before: Size, after: Size) -> Size:
    """By how much the resolution falls."""
    return tuple(max(1, early // late) for early, late in zip(before, after, strict=True))


def reader_for(entry: nn.Conv2d, block: ResidualBlock, channels: int,
               conv_cfg: Optional[dict]) -> nn.Module:
    """``W_h`` of a block, which starts at zero.

    It has the geometry of the entry. For a grouped or depthwise entry, and for
    one that pads by itself, it is a 1x1 convolution of the same stride.

    Args:
        entry: The block's first convolution.
        block: The block.
        channels: k, the channels of h.
        conv_cfg: Config of the convolution, as in mmcv.
    """
    readers = [build_conv_layer(conv_cfg, channels, entry.out_channels, 1, stride=entry.stride,
                                bias=False)]
    like = reader_like(entry, channels, conv_cfg)
    readers.insert(0 if entry.groups == 1 else 1, like)
    for reader in readers:
        weight = last_convolution(reader).weight
        with torch.no_grad():
            out = reader(torch.zeros(1, channels, *block.in_size, dtype=weight.dtype,
                                     device=weight.device))
        if tuple(out.shape[2:]) == block.entry_size:
            nn.init.zeros_(weight)
            return reader
    raise ValueError(f'{block.name}.{block.entry} takes {block.in_size} to {block.entry_size} '
                     'pixels, which neither its own padding nor a 1x1 convolution does; name '
                     'another entry with model.backbone.blocks')


def stages_of(blocks: Sequence[ResidualBlock]) -> List[List[ResidualBlock]]:
    """Consecutive blocks whose outputs have the same channels and resolution."""
    stages: List[List[ResidualBlock]] = []
    for block in blocks:
        shape = (block.channels, block.out_size)
        if not stages or shape != (stages[-1][-1].channels, stages[-1][-1].out_size):
            stages.append([])
        stages[-1].append(block)
    return stages


def table_of(stages: Sequence[Sequence[ResidualBlock]]) -> str:
    """What was found, a line for each stage."""
    rows = [('stage', 'blocks', 'from', 'to', 'channels', 'entry', 'branch', 'shortcut')]
    for i, blocks in enumerate(stages):
        branches, shortcuts = ({getattr(block, key): None for block in blocks}
                               for key in ('branch', 'shortcut'))
        rows.append((
            str(i), str(len(blocks)), blocks[0].name, blocks[-1].name, str(blocks[0].channels),
            ', '.join(dict.fromkeys(block.entry for block in blocks)),
            ', '.join('output - shortcut' if name is None else name for name in branches),
            ', '.join({None: '?', '': 'input'}.get(name, name) for name in shortcuts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(
        row, widths, strict=True)).rstrip() for row in rows)


def check_variant(config: RLAConfig, blocks: Sequence[ResidualBlock]) -> None:
    """Stop on a variant that takes what a block does not show."""
    possible = [name for name, variant in VARIANTS.items()
                if all(variant.source in block.sources() for block in blocks)]
    if config.variant in possible:
        return
    source = VARIANTS[config.variant].source
    block = next(block for block in blocks if source not in block.sources())
    raise ValueError(
        f'rla.variant={config.variant!r} takes the {source} of each block, which is not the '
        f'output of a module in {block.name}; choose one of: {", ".join(possible)}, or name the '
        'module with model.backbone.blocks')


def make_hidden_path(network: nn.Module, stages: Sequence[Sequence[ResidualBlock]],
                     config: RLAConfig, out_hidden: bool, conv_cfg: Optional[dict],
                     norm_cfg: dict) -> ModuleList:
    """The hidden path along the blocks of a network, a part for each stage."""
    weight = next(network.parameters())
    path = ModuleList()
    for i, blocks in enumerate(stages):
        entries = [network.get_submodule(f'{block.name}.{block.entry}') for block in blocks]
        is_last = i == len(stages) - 1
        path.append(RLAStage(
            readers=[reader_for(entry, block, config.channels, conv_cfg)
                     for entry, block in zip(entries, blocks, strict=True)],
            feature_channels=blocks[-1].channels,
            stride=1,  # a step brings h to the resolution of its block
            num_updates=len(blocks) - (is_last and not out_hidden),
            config=config,
            conv_cfg=conv_cfg,
            norm_cfg=norm_cfg,
            init_cfg=INIT_CFG))
    return path.to(weight.device, weight.dtype)


@functools.cache
def class_with_rla(network: type) -> type:
    """The class of a network of class ``network`` that has a hidden path."""
    return types.new_class(f'{network.__name__}WithRLA', (WithRLA, network), exec_body=lambda body:
                           body.update(plain=network, __module__=__name__))


def _blank(network: type) -> nn.Module:
    """An instance for a copy or for unpickling, whose state follows."""
    cls = class_with_rla(network)
    return cls.__new__(cls)


@MODELS.register_module()
class WithRLA(RLABackbone):
    """A residual backbone with recurrent layer aggregation.

    The result is the backbone itself, of a class derived from its own: its
    attributes, parameter names, ``init_cfg``, ``frozen_stages``, ``norm_eval`` and
    ``out_indices`` are those of the plain network. Its weights load as they do
    there. The hidden path is added as ``rla`` and starts with ``W_h = 0``, so that
    the outputs are those of the plain network until training changes W_h.

    ``frozen_stages`` and ``norm_eval`` do not apply to the hidden path unless
    ``rla.pretrained=True``, because it starts untrained.

    Args:
        backbone: Config of a backbone in any registry, or the network itself,
            which then is changed.
        rla: Keys of :class:`~mmrla.models.rla.RLAConfig`. ``pretrained`` is False
            by default.
        out_hidden: Return the last hidden state after the network's outputs,
            for a classifier (:class:`~mmrla.models.layers.necks.RLAPooling`).
        blocks: The residual blocks, where the dry run does not find them; see
            :func:`~mmrla.models.residual_blocks.find_residual_blocks`.
        input_shape: (C, H, W) of the image of the dry run.
        conv_cfg: Config of the convolutions of the hidden path, as in mmcv.
        norm_cfg: Config of its norms.
        init_cfg: As in mmengine; replaces that of ``backbone``.

    Example:
        >>> import torch
        >>> from mmrla.models import WithRLA
        >>> backbone = WithRLA(dict(type='mmdet.RegNet', arch='regnetx_400mf'))
        >>> for out in backbone(torch.rand(1, 3, 64, 64)):
        ...     print(tuple(out.shape))
        (1, 32, 16, 16)
        (1, 64, 8, 8)
        (1, 160, 4, 4)
        (1, 384, 2, 2)
    """
    plain: type

    def __new__(cls, backbone: Union[dict, nn.Module, None] = None, **kwargs) -> nn.Module:
        """Build the network; its class becomes one that has a hidden path."""
        if cls is not WithRLA:
            return super().__new__(cls)
        network = MODELS.build(backbone) if isinstance(backbone, dict) else backbone
        if not isinstance(network, nn.Module):
            raise ValueError(f'backbone={backbone!r} must be the config of a network, or one')
        if hasattr(network, 'rla'):
            raise ValueError(f'{type(network).__name__} has an attribute "rla"; a network of '
                             'mmrla takes rla=dict(...) itself')
        network.__class__ = class_with_rla(type(network))
        return network

    def __init__(self,
                 backbone: Union[dict, nn.Module],
                 rla: Dict[str, Any] = dict(channels=32, variant='v1'),
                 out_hidden: bool = False,
                 blocks: Optional[Sequence[Dict[str, Any]]] = None,
                 input_shape: Optional[Sequence[int]] = None,
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN', requires_grad=True),
                 init_cfg: Union[dict, List[dict], None] = None) -> None:
        own_class, self.__class__ = type(self), self.plain  # an error leaves a plain network
        config = RLAConfig.parse({'pretrained': False, **rla})
        config.check_reaches_output(out_hidden)
        found = find_residual_blocks(self, input_shape, blocks)
        check_variant(config, found)
        stages = stages_of(found)
        hidden_path = make_hidden_path(self, stages, config, out_hidden, conv_cfg, norm_cfg)
        self.__class__ = own_class
        self.rla = hidden_path
        self.out_hidden = out_hidden
        self.init_cfg = init_cfg or getattr(self, 'init_cfg', None)
        self._is_init = getattr(self, '_is_init', False)
        self._pass = Pass()
        self._steps = list(self._make_steps(stages))
        self.train(self.training)
        print_log(f'{self.plain.__name__} with a hidden path along {len(found)} blocks:\n'
                  f'{table_of(stages)}', logger='current', level=logging.INFO)

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Copies and pickles name the plain class, which can be imported."""
        _, _, state, *rest = super().__reduce_ex__(max(2, protocol))
        return _blank, (self.plain,), state, *rest

    def _make_steps(self, stages: Sequence[Sequence[ResidualBlock]]) -> Iterator[HiddenStep]:
        """A step for each block."""
        recomputed = self._take_over_checkpointing([
            block.name for blocks in stages for block in blocks])
        size = stages[0][0].in_size
        for blocks, stage in zip(stages, self.rla, strict=True):
            for t, block in enumerate(blocks):
                yield HiddenStep(
                    self.get_submodule(block.name), block, stage, t,
                    before=stride_between(size, block.in_size), current=self._pass,
                    recompute=block.name in recomputed)
                size = block.out_size

    def hidden_stages(self) -> Iterator[Tuple[RLAStage, List[nn.Module]]]:
        """Each stage's part of the hidden path, and the stage's blocks."""
        for stage in self.rla:
            yield stage, [step.module for step in self._steps if step.stage is stage]

    def joints(self) -> Iterator[Tuple[nn.Module, nn.Module, nn.Module]]:
        """The entries that a batch norm follows, with that norm and the reader."""
        for step in self._steps:
            if step.block.norm is not None and step.stage.config.exchange:
                yield (step.module.get_submodule(step.block.entry),
                       step.module.get_submodule(step.block.norm),
                       last_convolution(step.stage.readers[step.t]))

    def _take_over_checkpointing(self, names: Sequence[str]) -> set:
        """Turn checkpointing of and around blocks off; the names of those blocks."""
        recomputed = set()
        for name, module in self.named_modules():
            flags = [flag for flag in CHECKPOINTING if vars(module).get(flag) is True]
            related = [block for block in names if not name or block == name
                       or block.startswith(f'{name}.') or name.startswith(f'{block}.')]
            if flags and related:
                recomputed.update(related)
                for flag in flags:
                    setattr(module, flag, False)
        return recomputed

    def init_weights(self) -> None:
        """Set the initial values as the plain network does, and the hidden path's."""
        if hasattr(self.plain, 'init_weights'):
            self.plain.init_weights(self)
        for stage in self.rla:
            if not stage.is_init:
                stage.init_weights()

    def train(self, mode: bool = True) -> 'WithRLA':
        """Set the training mode; frozen stages stay in eval mode."""
        super().train(mode)
        for step in self._steps:
            step.attach()
        if not self.rla_config.pretrained:
            self.rla.train(mode)
            return self
        for stage, blocks in self.hidden_stages():
            if not any(p.requires_grad for block in blocks for p in block.parameters()):
                stage.eval()
                stage.requires_grad_(False)
        return self

    def forward(self, x: Tensor) -> Any:
        """Run the network.

        Args:
            x: Images of shape (N, 3, H, W), H and W of any size that the plain
                network takes.

        Returns:
            The outputs of the plain network; with ``out_hidden`` a tuple of these
            and the last hidden state, (N, k, H', W').
        """
        current = self._pass
        if not torch.compiler.is_compiling():
            for step in self._steps:
                step.attach()
        current.running = True
        try:
            outs = super().forward(x)
            state = current.state
        finally:
            current.running, current.state = False, None
        if not self.out_hidden:
            return outs
        return (*(outs if isinstance(outs, (tuple, list)) else (outs,)), state[0])
