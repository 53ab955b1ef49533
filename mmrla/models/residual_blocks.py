"""Finding the residual blocks of a network by one dry run.

The network runs once on a blank image while hooks record the input and output
of every module. autograd's graph then shows how each output was made. A module
is a residual block if its output is ``y + shortcut``, or an activation of it:

- the shortcut is the module's input, or has at most one convolution (a
  projection);
- the branch ``y`` contains more convolutions than the shortcut, and one of them
  sees the module's input with nothing but norms and activations in between:
  the block's *entry*.

Only the graph is read, never a value. The result is therefore the same for any
weights, for zero-initialised norms and on the meta device.
"""
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmrla.models.dry_run import Call, DryRun, Edge, dry_run, version, walk
from mmrla.models.layers.checks import check_keys

ACTIVATIONS = re.compile(
    r'(Relu|LeakyRelu|Silu|Gelu|Hardswish|Hardtanh|Elu|Mish|Softplus|Sigmoid|Tanh)Backward')
SUM = re.compile(r'AddBackward')
BLOCK_KEYS = ('block', 'entry', 'branch', 'shortcut')
# Networks with parallel blocks, by class: the chain of blocks to follow. An HRNet's is
# its branch of the highest resolution.
_HRNET = [dict(block=r'layer1\.\d+'), dict(block=r'stage\d\.\d+\.branches\.0\.\d+')]
HINTS = dict(HRNet=_HRNET, HighResolutionNet=_HRNET, HighResolutionNetFeatures=_HRNET)


@dataclass(frozen=True)
class ResidualBlock:
    """A residual block, with its parts by their names inside the block.

    Attributes:
        name: The block's name in the network.
        entry: The first convolution that sees the block's input.
        branch: The module that returns y, the residual branch; None if y is
            not the output of a module.
        shortcut: The module that returns what y is added to, ``''`` for the
            block's input, None if it is neither.
        activated: Whether an activation follows the sum.
        norm: The batch norm that takes the entry's output, if there is one.
        channels: C, the channels of the block's output.
        in_size: (H, W) of the block's input in the dry run.
        out_size: (H', W') of the block's output in the dry run.
        entry_size: (H, W) of the entry's output in the dry run.
        changed: The parts among ``branch`` and ``shortcut`` whose tensors the
            block changes in place after they were made.
    """
    name: str
    entry: str
    branch: Optional[str]
    shortcut: Optional[str]
    activated: bool
    norm: Optional[str]
    channels: int
    in_size: Tuple[int, int]
    out_size: Tuple[int, int]
    entry_size: Tuple[int, int]
    changed: Tuple[str, ...] = ()

    def sources(self) -> List[str]:
        """The fields of ``BlockFeatures`` that the hidden path can take."""
        shows_residual = self.branch is not None or (
            self.shortcut is not None and not self.activated)
        return ['out'] + ['residual'] * shows_residual + ['shortcut'] * (self.shortcut is not None)


def find_residual_blocks(network: nn.Module, input_shape: Optional[Sequence[int]] = None,
                         blocks: Optional[Sequence[Dict[str, Any]]] = None
                         ) -> List[ResidualBlock]:
    """The residual blocks that a network runs one after another.

    Args:
        network: Its parameters and buffers are not changed.
        input_shape: (C, H, W) of the blank image. By default 64 x 64 pixels, or
            224 x 224 if the network takes none so small.
        blocks: Where the dry run alone does not find them: dicts with
            ``block``, a regular expression for the names of modules, and any of
            ``entry``, ``branch`` and ``shortcut``, names of modules inside the
            block that replace those found. ``shortcut=''`` is the input.

    Returns:
        list[ResidualBlock]: In the order in which they run; only those on
        which an output of the network depends.
    """
    record = dry_run(network, input_shape)
    blocks = blocks or _hint(network)
    found = _named(record, blocks) if blocks else _innermost(record)
    found = [(call, block) for call, block in found if call.output.node in record.used]
    if not found:
        raise ValueError(
            f'{type(network).__name__} has no residual block that was found. Searched for: a '
            'module called once, whose output is y + x, or an activation of it, where x is its '
            'input or a projection of it, and y comes from a Conv2d that sees x. If there are '
            f'such blocks, {_fix(blocks)}')
    _check_chain(record, found, blocks)
    return [block for _, block in found]


def _hint(network: nn.Module) -> Optional[List[Dict[str, Any]]]:
    """The entry of ``HINTS`` for a network, which may be inside a wrapper."""
    for name, module in network.named_modules():
        if type(module).__name__ in HINTS:
            prefix = re.escape(f'{name}.') if name else ''
            return [dict(cfg, block=prefix + cfg['block'])
                    for cfg in HINTS[type(module).__name__]]
    return None


def _fix(blocks: Optional[Sequence[Dict[str, Any]]]) -> str:
    key = 'model.backbone.blocks=[dict(block="REGEX", entry="conv1", branch="bn2", shortcut="")]'
    return f'check {key}' if blocks else f'name them with {key}'


@dataclass
class _Analysis:
    """One module of the dry run, looked at as a residual block.

    Attributes:
        total: The node of the sum; None if the module is no residual block.
        entry: The call of the entry convolution.
    """
    record: DryRun
    call: Call
    total: Any = None
    activated: bool = False
    branch: Optional[Edge] = None
    shortcut: Optional[Edge] = None
    entry: Optional[Call] = None
    inside: List[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.call.is_feature_map() or not self.record.once(self.call):
            return
        self.inside = self.record.inside(self.call)
        self.convs = [call for call in self.inside
                      if isinstance(call.module, nn.Conv2d) and call.output is not None]
        total = self._sum()
        if total is None:
            return
        self._split(total)
        if self.branch is not None:
            self.entry = self._entry()
            self.total = total.node if self.entry else None

    def _sum(self) -> Optional[Edge]:
        """The sum that ends the module, behind activations."""
        edge = self.call.output.without_copies(self.call.input)
        while not self._is_sum(edge):
            module = next((call for call in reversed(self.inside)
                           if call.output == edge and call.is_activation()), None)
            if module is not None and module.input != edge:
                before = module.input
            elif edge.is_like(ACTIVATIONS) and len(edge.inputs()) == 1:
                before, = edge.inputs()
            else:
                return None
            self.activated, edge = True, before.without_copies(self.call.input)
        return edge

    @staticmethod
    def _is_sum(edge: Edge) -> bool:
        return (edge.is_like(SUM) and len(edge.inputs()) == 2
                and getattr(edge.node, '_saved_alpha', 1) == 1)

    def _depends_on(self, edge: Edge) -> Dict[Any, None]:
        """The nodes between the module's input and a tensor."""
        return walk([edge], stop={self.call.input.node})

    def _convs_of(self, edge: Edge) -> List[Call]:
        nodes = self._depends_on(edge)
        return [conv for conv in self.convs if conv.output.node in nodes]

    def _split(self, total: Edge) -> None:
        """Tell the branch from the shortcut."""
        sides = sorted((edge.without_copies(self.call.input) for edge in total.inputs()),
                       key=lambda edge: len(self._convs_of(edge)))
        shortcut, branch = sides
        counts = [len(self._convs_of(edge)) for edge in sides]
        if counts[0] > 1 or counts[0] == counts[1]:
            return
        is_input = shortcut == self.call.input
        is_module = self._module(shortcut) is not None
        path = self._depends_on(shortcut)
        if self.call.input.node not in path:
            return
        if not is_input and not is_module and any(SUM.match(node.name()) for node in path
                                                  if node is not self.call.input.node):
            return  # a sum of sums, such as both halves of a transformer's block
        convs = self._convs_of(branch)
        if len(convs) > 1 and all(map(self._sees_input, convs)):
            return  # convolutions side by side, which may be merged into one
        if self._shape(branch) not in (None, self.call.made.shape):
            return  # an attention's term for a whole channel
        self.shortcut, self.branch = shortcut, branch

    @staticmethod
    def _shape(edge: Edge) -> Optional[torch.Size]:
        metadata = getattr(edge.node, '_input_metadata', None)
        return torch.Size(metadata[edge.index].shape) if metadata else None

    def _module(self, edge: Edge) -> Optional[Call]:
        """The last module inside that returned a tensor; None if none did."""
        def returned(call: Call) -> bool:
            return (call.output is not None and self.record.once(call)
                    and call.output.without_copies(self.call.input) == edge)
        return max(filter(returned, self.inside), key=lambda call: call.end, default=None)

    def _entry(self) -> Optional[Call]:
        """The first convolution of the branch that sees the input."""
        projections = self._convs_of(self.shortcut)
        return next((conv for conv in self._convs_of(self.branch)
                     if conv not in projections and self.record.once(conv)
                     and self._sees_input(conv)), None)

    def _sees_input(self, conv: Call) -> bool:
        """Whether no convolution or pooling is between the input and ``conv``."""
        if conv.input is None or conv.given.shape[2:] != self.call.given.shape[2:]:
            return False
        path = self._depends_on(conv.input)
        return self.call.input.node in path and not any(
            other.output.node in path for other in self.convs)

    def is_in_a_branch(self) -> bool:
        """Whether the module is only a part of another block's branch.

        Its output is then added to a tensor of which its input is a norm, and its own
        shortcut is not the network's. An example is the attention of a VAN.
        """
        normed = self._normed_by_input()
        return any(edge.node in normed for node in self._next_sums()
                   for edge in Edge(node, 0).inputs())

    def _normed_by_input(self) -> Set[Any]:
        """The nodes before the input, up to and with the nearest sums and convolutions."""
        ends = {call.output.node for call in self.record.calls
                if isinstance(call.module, nn.Conv2d) and call.output is not None}
        ends |= {node for node in self.record.used if SUM.match(node.name())}
        nodes = walk([self.call.input], stop=ends)
        return set(nodes) - {self.call.input.node}

    def _next_sums(self) -> List[Any]:
        """The sums that take the output, or what is made of it without a sum."""
        sums, seen, queue = [], set(), [self.call.output.node]
        while queue:
            for node in self.record.users[queue.pop()]:
                if node not in seen:
                    seen.add(node)
                    (sums if SUM.match(node.name()) else queue).append(node)
        return sums

    def _inner_name(self, call: Optional[Call]) -> Optional[str]:
        return None if call is None else call.name[len(self.call.name):].lstrip('.')

    def describe(self) -> ResidualBlock:
        """What the hidden path needs to know of the block."""
        branch = shortcut = entry = norm = None
        changed = []
        if self.total is not None:
            branch, shortcut = self._module(self.branch), self._module(self.shortcut)
            changed = [part for part, call in (('branch', branch), ('shortcut', shortcut))
                       if call is not None and version(call.made) != call.versions[1]]
            entry, norm = self.entry, self.norm_of(self.entry)
        is_input = self.total is not None and self.shortcut == self.call.input
        if is_input and version(self.call.given) != self.call.versions[0]:
            changed.append('shortcut')
        return ResidualBlock(
            name=self.call.name,
            entry=self._inner_name(entry) or '',
            branch=self._inner_name(branch),
            shortcut='' if is_input else self._inner_name(shortcut),
            activated=self.activated or self.total is None,
            norm=norm,
            channels=self.call.made.shape[1],
            in_size=tuple(self.call.given.shape[2:]),
            out_size=tuple(self.call.made.shape[2:]),
            entry_size=tuple(entry.made.shape[2:]) if entry else (),
            changed=tuple(changed))

    def norm_of(self, entry: Call) -> Optional[str]:
        """The name of the batch norm that takes the output of the entry, or a copy of it."""
        def takes(call: Call) -> bool:
            return (isinstance(call.module, _BatchNorm) and call.input is not None
                    and call.input.without_copies(entry.output) == entry.output
                    and self.record.once(call))
        return self._inner_name(next(filter(takes, self.inside), None))


Found = Tuple[Call, ResidualBlock]


def _innermost(record: DryRun) -> List[Found]:
    """The residual blocks that are not a part of another."""
    analyses = [_Analysis(record, call) for call in record.calls]
    smallest: Dict[Any, _Analysis] = {}
    for analysis in analyses:  # of modules with the same sum, the last is inside the others
        if analysis.total is not None:
            smallest[analysis.total] = analysis
    kept = list(smallest.values())
    # A module with a shortcut around several blocks begins inside the first of them.
    kept = [outer for outer in kept if not any(
        outer.call.contains(inner.call) and inner.call.contains(outer.entry) for inner in kept)]
    # A block's attention may be residual in itself; it belongs to the block.
    kept = [inner for inner in kept
            if not any(outer.call.contains(inner.call) for outer in kept)]
    kept = [analysis for analysis in kept if not analysis.is_in_a_branch()]
    return [(analysis.call, analysis.describe())
            for analysis in sorted(kept, key=lambda analysis: analysis.call.start)]


def _named(record: DryRun, blocks: Sequence[Dict[str, Any]]) -> List[Found]:
    """The blocks that a config names."""
    found: Dict[str, Found] = {}
    for cfg in blocks:
        check_keys('blocks', cfg, BLOCK_KEYS)
        if 'block' not in cfg:
            raise ValueError(f'blocks={cfg!r} has no key "block", a regular expression for the '
                             'names of the blocks')
        calls = [call for call in record.calls if re.fullmatch(cfg['block'], call.name)]
        if not calls:
            names = ', '.join(list(record.times)[1:6])
            raise ValueError(f'blocks: block={cfg["block"]!r} is the name of no module that '
                             f'{type(record.network).__name__} runs; it runs {names}, ...')
        for call in calls:
            found[call.name] = call, _overridden(record, call, cfg)
    return sorted(found.values(), key=lambda pair: pair[0].start)


def _overridden(record: DryRun, call: Call, cfg: Dict[str, Any]) -> ResidualBlock:
    """A block of which the config names some parts."""
    if not call.is_feature_map() or not record.once(call):
        raise ValueError(f'blocks: {call.name} must run once and take and return one tensor of '
                         'shape (N, C, H, W)')
    analysis = _Analysis(record, call)
    block = analysis.describe()
    for key in ('entry', 'branch', 'shortcut'):
        if key not in cfg:
            continue
        name = cfg[key]
        if key == 'entry':
            part = _part(record, call, key, name)
            block = replace(block, entry=name, norm=analysis.norm_of(part),
                            entry_size=tuple(part.made.shape[2:]))
            continue
        if name:
            _part(record, call, key, name)
        block = replace(block, **{key: name}, changed=(*block.changed, key))
    if not block.entry:
        raise ValueError(f'blocks: no entry convolution was found in {call.name}; name it with '
                         f'dict(block={cfg["block"]!r}, entry="conv1", ...)')
    return block


def _part(record: DryRun, call: Call, key: str, name: str) -> Call:
    """The call of a part that a config names, if it is what its key says."""
    full = f'{call.name}.{name}'
    part = next((other for other in record.inside(call) if other.name == full), None)
    if part is None or not record.once(part) or not isinstance(part.made, Tensor):
        raise ValueError(f'blocks: {key}={name!r} is not a module that {call.name} calls once')
    if key == 'entry' and not isinstance(part.module, nn.Conv2d):
        raise ValueError(f'blocks: entry={name!r} of {call.name} is a '
                         f'{type(part.module).__name__}; it must be a Conv2d')
    if key != 'entry' and part.made.shape != call.made.shape:
        raise ValueError(f'blocks: {key}={name!r} of {call.name} does not have the shape of the '
                         f'block\'s output, {tuple(call.made.shape)}')
    return part


def _check_chain(record: DryRun, found: Sequence[Found],
                 blocks: Optional[Sequence[Dict[str, Any]]]) -> None:
    """Stop on blocks that do not follow one another."""
    network = type(record.network).__name__
    for (before, first), (after, second) in zip(found, found[1:], strict=False):
        if before.output.node not in walk([after.input], stop={before.output.node}):
            raise ValueError(
                f'{network} has parallel blocks: {second.name} does not depend on {first.name}, '
                f'and a hidden path follows one chain. To follow some of them, {_fix(blocks)}')
        if any(late > early for early, late in zip(first.out_size, second.in_size, strict=True)):
            raise ValueError(
                f'{network} raises the resolution from {first.out_size} after {first.name} to '
                f'{second.in_size} before {second.name}, and a hidden path keeps or lowers it. '
                f'To follow the blocks up to there, {_fix(blocks)}')
