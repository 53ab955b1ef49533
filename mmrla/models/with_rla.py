"""Recurrent layer aggregation on any residual backbone.

:class:`WithRLA` adds the hidden path of :mod:`mmrla.models.rla` to a network that
knows nothing of it. :mod:`mmrla.models.residual_blocks` finds the blocks, and
:mod:`mmrla.models.hidden_step` runs both paths along them.
"""
import functools
import logging
import types
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from mmcv.cnn import build_conv_layer
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.model import ModuleList, initialize
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmrla.models.backbones.base import Joint, RLABackbone
from mmrla.models.dry_run import CHECKPOINTING
from mmrla.models.hidden_step import HiddenStep, Pass, stride_between
from mmrla.models.residual_blocks import ResidualBlock, find_residual_blocks
from mmrla.models.rla import VARIANTS, RLAConfig, RLAStage, last_convolution, reader_like

# W_h = 0: the network computes what it computed without a hidden path.
INIT_CFG = dict(type='Kaiming', layer='Conv2d',
                override=dict(type='Constant', name='readers', val=0))


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
    raise ValueError(f'the input of {block.name} has {block.in_size} pixels and the output of '
                     f'its entry {block.entry} has {block.entry_size}; neither a convolution '
                     'like the entry nor a 1x1 one of its stride takes h from the first to the '
                     'second; name another entry with model.backbone.blocks')


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

    ``frozen_stages`` and ``norm_eval`` do not apply to a new hidden path, because it
    starts untrained. They apply after weights that contain a hidden path are loaded.

    Args:
        backbone: Config of a backbone in any registry, or the network itself,
            which then is changed.
        rla: Keys of :class:`~mmrla.models.rla.RLAConfig`.
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
    # A network for detection may have norms that a classifier's file lacks.
    requires_all_parts = False

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
        if isinstance(network, nn.Sequential):
            raise ValueError(f'{type(network).__name__} runs all of its children, and the hidden '
                             'path becomes one of them; give a module that has it as a child')
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
        config = RLAConfig.parse(rla)
        config.check_reaches_output(out_hidden)
        found = find_residual_blocks(self, input_shape, blocks)
        check_variant(config, found)
        stages = stages_of(found)
        hidden_path = make_hidden_path(self, stages, config, out_hidden, conv_cfg, norm_cfg)
        self.__class__ = own_class
        self._prepare_loading()
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
        size = stages[0][0].in_size
        for blocks, stage in zip(stages, self.rla, strict=True):
            for t, block in enumerate(blocks):
                yield HiddenStep(
                    self.get_submodule(block.name), block, stage, t,
                    before=stride_between(size, block.in_size), current=self._pass)
                size = block.out_size

    def hidden_stages(self) -> List[Tuple[RLAStage, List[nn.Module]]]:
        """Each part of the hidden path, with the blocks of the main path."""
        return [(stage, [step.module for step in self._steps if step.stage is stage])
                for stage in self.rla]

    def joints(self) -> Iterator[Joint]:
        """The places where h enters the main path and a batch norm follows."""
        for step in self._steps:
            if step.block.norm is not None and step.stage.config.exchange:
                yield Joint(step.module.get_submodule(step.block.entry),
                            step.module.get_submodule(step.block.norm),
                            last_convolution(step.stage.readers[step.t]))

    def _take_over_checkpointing(self) -> None:
        """Turn checkpointing of and around blocks off; their steps recompute them with h."""
        for name, module in self.named_modules():
            flags = [flag for flag in CHECKPOINTING if vars(module).get(flag) is True]
            steps = [step for step in self._steps if flags and step.is_related(name)]
            for step in steps:
                step.recompute = True
            for flag in flags if steps else ():
                setattr(module, flag, False)

    def init_weights(self) -> None:
        """Set the initial values of both paths, then load the weights of ``init_cfg``."""
        pretrained, is_first = self.pretrained_cfgs(), not self.is_init
        init_cfg, self.init_cfg = self.init_cfg, self.other_cfgs() or None
        if hasattr(self.plain, 'init_weights'):
            self.plain.init_weights(self)
        for stage in self.rla:
            if not stage.is_init:
                stage.init_weights()
        self.init_cfg, self.is_init = init_cfg, True
        if is_first:
            initialize(self, [dict(cfg, type='PretrainedBackbone') for cfg in pretrained])

    def set_new_parts(self, names: Iterable[str]) -> None:
        """Set which parts the loaded weights did not contain; freeze the others."""
        super().set_new_parts(names)
        is_new, frozen = 'rla' in self.new_parts, self._frozen_stages_of_path()
        now_train = is_new and not all(p.requires_grad for stage in frozen
                                       for p in stage.parameters())
        if now_train and get_world_size() > 1 and not self.is_wrapped_later:
            raise RuntimeError(
                'the loaded weights have no rla, so the hidden path along frozen stages must '
                "train, but DDP was built without it; set runner_type='RLARunner', which builds "
                'DDP after the weights are loaded')
        for stage in frozen:
            stage.requires_grad_(is_new)
        self.train(self.training)

    def _frozen_stages_of_path(self) -> List[RLAStage]:
        """The parts of the hidden path along blocks that are all frozen."""
        return [stage for stage, blocks in self.hidden_stages()
                if not any(p.requires_grad for block in blocks for p in block.parameters())]

    def keeps_random_values(self) -> bool:
        """Whether training would not change values that are still random."""
        return (self.new_parts is None and not self.pretrained_cfgs()
                and (getattr(self, 'frozen_stages', -1) >= 0 or getattr(self, 'norm_eval', False)))

    def train(self, mode: bool = True) -> 'WithRLA':
        """Set the training mode; frozen stages stay in eval mode."""
        super().train(mode)
        self._take_over_checkpointing()
        for step in self._steps:
            step.attach()
        if self.rla in self.new_modules():
            self.rla.train(mode)
            return self
        for stage in self._frozen_stages_of_path():
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
