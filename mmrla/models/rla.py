"""Recurrent layer aggregation: section 3.3 of the paper as code.

A residual stage has two paths. The main path is that of the backbone. The hidden path
is an RNN that runs over depth instead of time. Block ``t`` computes::

    y^t = f^t(Concat(x^{t-1}, h^{t-1}))     the residual branch, which reads h
    x^t = relu(y^t + shortcut(x^{t-1}))
    h^t = g2(g1(y^t) + h^{t-1})             g1: 1x1 conv; g2: norm, tanh, 3x3 conv

All blocks of a stage share ``g1`` and the convolution of ``g2``. Each block has its own
norm, and ``h^0 = 0``. Each of the paper's ablations changes one of these: see
:class:`RLAConfig`.

This module does not depend on any backbone. A backbone runs its blocks through
:meth:`RLAStage.forward`. A block takes ``(x, hidden=Exchange(term))``, adds the term to
the output of its first convolution, stores its :class:`BlockFeatures` in the exchange
and returns x.
"""
from dataclasses import asdict, dataclass, fields
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmcv.cnn import build_conv_layer, build_norm_layer
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from mmrla.models.layers.checks import check_choice, check_keys, check_positive_int
from mmrla.models.lean.conditions import owned
from mmrla.models.lean.conv_norm import Feature, Term, convolve
from mmrla.models.lean.forms import choose_forms


class BlockFeatures(NamedTuple):
    """The features that a residual block computes, each of shape (N, C, H', W').

    Attributes:
        residual: ``y``, the residual branch after its last norm and attention: a
            tensor, or an object of :mod:`~mmrla.models.lean` that stands for one.
        shortcut: The tensor that ``y`` is added to; None in a block without a shortcut.
        out: ``x' = relu(y + shortcut)``.
    """
    residual: Feature
    shortcut: Optional[Tensor]
    out: Tensor


@dataclass
class Exchange:
    """The data that a block and the hidden path pass to each other, besides x.

    A block returns x alone, so that hooks, and code that knows nothing of the hidden
    path, get a tensor.

    Attributes:
        term: To the block: the term that it adds to the output of its first
            convolution, of shape (N, w, H', W'); None if the block does not read h.
        features: From the block: its features.
    """
    term: Optional[Term] = None
    features: Optional[BlockFeatures] = None


class Variant(NamedTuple):
    """How new information enters the hidden state (figure 4 of the paper).

    Attributes:
        source: The field of :class:`BlockFeatures` that is compressed.
        recurrent: Whether it is added before the recurrent unit, and passes through it,
            or after the unit.
    """
    source: str
    recurrent: bool


VARIANTS = {
    'v1': Variant('residual', True),
    'v2': Variant('residual', False),
    'v3': Variant('out', True),
    'v4': Variant('out', False),
    'v5': Variant('shortcut', True),
    'v6': Variant('shortcut', False),
}


State = Tuple[Tensor, ...]


class ConvLSTMCell(nn.Module):
    """The ConvLSTM of the paper's ablation (d), with the cell of the authors' code.

    The paper's text names Keras's cell instead: see docs/paper_notes.md.

    Args:
        channels: k, the channels of the input, h and c.
        conv_cfg: Config of the convolution, as in mmcv.
    """
    num_states = 2

    def __init__(self, channels: int, conv_cfg: Optional[dict] = None) -> None:
        super().__init__()
        self.gates = build_conv_layer(
            conv_cfg, 2 * channels, 4 * channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        """``(h, c)`` to ``(h', c')``, all like ``x`` of shape (N, k, H, W)."""
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class ConvGRUCell(nn.Module):
    """The ConvGRU of the authors' code; the paper's text only names GRU cells.

    A group norm with one group, weight and bias follows each gate and the
    candidate.

    Args:
        channels: k, the channels of the input and h.
        conv_cfg: Config of the convolutions, as in mmcv.
    """
    num_states = 1

    def __init__(self, channels: int, conv_cfg: Optional[dict] = None) -> None:
        super().__init__()
        self.gates = build_conv_layer(conv_cfg, 2 * channels, 2 * channels, 3, padding=1)
        self.candidate = build_conv_layer(conv_cfg, 2 * channels, channels, 3, padding=1)
        self.reset_norm, self.update_norm, self.candidate_norm = (
            nn.GroupNorm(1, channels, eps=1e-6) for _ in range(3))

    def forward(self, x: Tensor, state: State) -> State:
        """``(h,)`` to ``(h',)``, both like ``x`` of shape (N, k, H, W)."""
        h, = state
        reset, update = self.gates(torch.cat([x, h], 1)).chunk(2, 1)
        reset, update = self.reset_norm(reset).sigmoid(), self.update_norm(update).sigmoid()
        candidate = self.candidate_norm(self.candidate(torch.cat([x, reset * h], 1))).tanh()
        return (update * h + (1 - update) * candidate,)


def conv_cell(channels: int, conv_cfg: Optional[dict] = None) -> nn.Module:
    """The paper's recurrent convolution; the stage has its norm and tanh."""
    return build_conv_layer(conv_cfg, channels, channels, 3, padding=1, bias=False)


CELLS = dict(conv=conv_cell, lstm=ConvLSTMCell, gru=ConvGRUCell)


@dataclass(frozen=True)
class RLAConfig:
    """The checked ``rla=dict(...)`` of a backbone.

    Args:
        channels: ``k``, the channels of the hidden state. The paper uses 32 on
            ImageNet and COCO.
        variant: One of ``VARIANTS``. ``'v1'`` is the paper's proposal; the
            authors' published weights were trained with ``'v3'``.
        cell: The recurrent unit, one of ``CELLS``.
        shared: Whether the blocks of a stage share ``g1`` and the recurrent
            unit, or each block has its own.
        exchange: Whether the blocks read h. If not, only a classifier reads it.
        pre_act: Whether the norm and tanh of the ``'conv'`` cell come before
            its convolution or after it.
    """
    channels: int = 32
    variant: str = 'v1'
    cell: str = 'conv'
    shared: bool = True
    exchange: bool = True
    pre_act: bool = True

    def __post_init__(self) -> None:
        check_positive_int('rla.channels', self.channels)
        check_choice('rla.variant', self.variant, VARIANTS)
        check_choice('rla.cell', self.cell, CELLS)
        for name in ('shared', 'exchange', 'pre_act'):
            check_choice(f'rla.{name}', getattr(self, name), (True, False))
        if self.cell != 'conv' and not VARIANTS[self.variant].recurrent:
            raise ValueError(f'rla.variant={self.variant!r} adds after the recurrent unit, which '
                             f'rla.cell={self.cell!r} does not support; choose one of: v1, v3, v5')
        if self.cell != 'conv' and not self.pre_act:
            raise ValueError(f"rla.pre_act=False needs rla.cell='conv', not {self.cell!r}")

    def update(self) -> Dict[str, Any]:
        """The settings as a dict, as ``state_dict`` saves them."""
        return asdict(self)

    def check_reaches_output(self, out_hidden: bool) -> None:
        """Raise an error if nothing reads the hidden state."""
        if not self.exchange and not out_hidden:
            raise ValueError('rla.exchange=False and out_hidden=False: nothing reads the '
                             'hidden state; set one of them to True')

    @classmethod
    def parse(cls, cfg: Optional[Dict[str, Any]]) -> Optional['RLAConfig']:
        """Check the dict of a config; None, for a plain network, stays None."""
        if cfg is None:
            return None
        check_keys('rla', cfg, [field.name for field in fields(cls)])
        return cls(**cfg)


def reader_like(conv: nn.Conv2d, channels: int, conv_cfg: Optional[dict] = None) -> nn.Module:
    """``W_h`` for a block whose first convolution is ``conv``.

    ``f(Concat(x, h))`` begins with a convolution, which is linear:
    ``conv(Concat(x, h)) = W_x x + W_h h``. ``W_x`` stays the block's own
    convolution, with the same shape as in the plain network.

    Args:
        conv: The block's first convolution, ``W_x``.
        channels: k, the channels of h.
        conv_cfg: Config of the convolution, as in mmcv.
    """
    return build_conv_layer(
        conv_cfg, channels, conv.out_channels, conv.kernel_size, stride=conv.stride,
        padding=conv.padding, dilation=conv.dilation, bias=False)


def last_convolution(reader: nn.Module) -> nn.Module:
    """The last convolution of a reader, whose output the block adds.

    If its weight is zero, the network computes what it would without a hidden path.
    The warm start from the weights of a plain network uses this.
    """
    return [module for module in reader.modules() if isinstance(module, nn.Conv2d)][-1]


class RLAStage(BaseModule):
    """The hidden path along the blocks of one stage.

    Its state is a tuple: h, and for a ConvLSTM also c, each of shape (N, k, H, W).

    Args:
        readers: For each block, the module that computes from h the term which
            the block adds to the output of its first convolution; see
            :func:`reader_like`. Unused without ``config.exchange``.
        feature_channels: C, the channels of the blocks' output.
        stride: The stride of the first block, by which h is pooled.
        num_updates: The number of blocks that update h. In the last stage of a
            detector it is the number of blocks minus one: nothing reads the h of
            the last block, so that block has no norm to train. A stage with 0
            updates has neither ``g1`` nor ``g2``.
        config: The settings of the hidden path.
        recurrent: The convolution of ``g2``. By default the stage builds its
            own.
        forms: The forms in which h is read, ``'plain'`` or ``'memory_saving'``.
        conv_cfg: Config of the convolutions, as in mmcv.
        norm_cfg: Config of the norms, as in mmcv.
        init_cfg: As in mmengine. The default is He et al.'s (2015), as in the
            paper's text.
    """

    def __init__(self,
                 readers: Sequence[nn.Module],
                 feature_channels: int,
                 stride: int,
                 num_updates: int,
                 config: RLAConfig,
                 recurrent: Optional[nn.Module] = None,
                 forms: str = 'memory_saving',
                 conv_cfg: Optional[dict] = None,
                 norm_cfg: dict = dict(type='BN'),
                 init_cfg: Optional[dict] = dict(type='Kaiming', layer='Conv2d')) -> None:
        super().__init__(init_cfg)
        k = config.channels
        self.config = config
        self.channels = k
        self.stride = stride
        self.forms = forms
        self.variant = VARIANTS[config.variant]
        if recurrent is not None and (config.cell != 'conv' or not config.shared):
            raise ValueError(f'rla.cell={config.cell!r}, rla.shared={config.shared!r}: this '
                             "network supports only the shared 'conv' cell")
        if num_updates:
            self.compress = self._each_or_shared(num_updates, lambda: build_conv_layer(
                conv_cfg, feature_channels, k, 1, bias=False))
            self.recurrent = recurrent or self._each_or_shared(
                num_updates, lambda: CELLS[config.cell](k, conv_cfg))
        self.norms = ModuleList(
            [build_norm_layer(norm_cfg, k)[1] for _ in range(num_updates)])
        self.readers = ModuleList(readers if config.exchange else [])

    def _each_or_shared(self, count: int, build) -> nn.Module:
        """One module for all blocks, or a list with one for each."""
        return build() if self.config.shared else ModuleList([build() for _ in range(count)])

    @staticmethod
    def of_block(module: Union[nn.Module, ModuleList], t: int) -> nn.Module:
        """The module of block ``t``: a shared one, or an entry of a list."""
        return module[t] if isinstance(module, ModuleList) else module

    def initial_state(self, x: Tensor) -> State:
        """h^0 = 0, for an ``x`` of shape (N, C, H, W).

        Returns:
            tuple[Tensor]: Each of shape (N, k, H, W), with the dtype and device
            of ``x``.
        """
        count = getattr(CELLS[self.config.cell], 'num_states', 1)
        # One expanded zero: it takes no memory when it is saved for backward.
        return (x.new_zeros(()).expand(x.shape[0], self.channels, *x.shape[2:]),) * count

    def pool(self, h: Tensor) -> Tensor:
        """Reduce h to the resolution of the output of a block of stride s.

        The size is rounded up, as by the block's convolution: on an odd side the last
        window holds fewer than s pixels, and averages those.
        """
        if self.stride == 1:
            return h
        return F.avg_pool2d(
            h, self.stride, self.stride, ceil_mode=True, count_include_pad=False)

    def unit(self, t: int, h: Tensor) -> Tensor:
        """``g2`` of block ``t``: norm, tanh and the recurrent convolution.

        Args:
            t: The block's position in the stage, from 0.
            h: Shape (N, k, H, W).
        """
        convolution, norm = self.of_block(self.recurrent, t), self.norms[t]
        if self.config.pre_act:
            return convolution(owned(norm, norm(h)).tanh_())
        return owned(norm, norm(convolution(h))).tanh_()

    def update(self, t: int, state: State, new: Tensor) -> State:
        """h^t from h^{t-1} and the features of block ``t``.

        Args:
            t: The block's position in the stage, from 0.
            state: Each of shape (N, k, H, W).
            new: ``g1`` of block ``t``'s feature, of shape (N, k, H', W'). It is
                modified in place.

        Returns:
            tuple[Tensor]: Each of shape (N, k, H', W').
        """
        if t == 0:
            state = tuple(self.pool(part) for part in state)
        if self.config.cell != 'conv':
            return self.of_block(self.recurrent, t)(self.norms[t](new).tanh(), state)
        h, = state
        if self.variant.recurrent:
            return (self.unit(t, new.add_(h)),)
        return (new.add_(self.unit(t, h)),)

    def step(self, t: int, block: nn.Module, x: Tensor, state: State) -> Tuple[Tensor, State]:
        """One block of both paths: ``(x, h)`` becomes ``(x', h')``."""
        hidden = Exchange()
        if self.config.exchange:
            hidden.term = choose_forms(self.forms, x).read(self.readers[t], state[0])
        out = block(x, hidden=hidden)
        if t < len(self.norms):
            features = BlockFeatures(hidden.features.residual, hidden.features.shortcut, out)
            feature = getattr(features, self.variant.source)
            state = self.update(t, state, convolve(self.of_block(self.compress, t), feature))
        return out, state

    def forward(self, blocks: nn.Module, x: Tensor, state: Optional[State],
                run: Callable = lambda function, *args: function(*args)) -> Tuple[Tensor, State]:
        """Run a stage.

        Args:
            blocks: The stage's residual blocks, a
                :class:`~mmrla.models.backbones.blocks.Stage`.
            x: Shape (N, C_in, H, W).
            state: The state that the previous stage returned; None for the first.
            run: Calls a function with its arguments; a backbone passes its
                activation checkpointing here.

        Returns:
            tuple[Tensor, tuple[Tensor]]: x and the state after the stage; the
            state's first entry is h.
        """
        if state is None:
            state = self.initial_state(x)

        def step(t: int, block: nn.Module, x: Tensor) -> Tensor:
            nonlocal state
            x, state = run(self.step, t, block, x, state)
            return x

        x = blocks(x, step=step)
        return x, state
