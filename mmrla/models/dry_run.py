"""A record of what every module of a network does in one forward pass.

The network runs once on a blank image. Hooks record the input and output of every
module, and autograd's graph tells from which tensors each of them was made.
"""
import contextlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

COPIES = re.compile(r'(Clone|Alias|ToCopy)Backward')
SIDES = (64, 224)
# Attributes by which mmdet, mmpretrain and timm turn activation checkpointing on.
CHECKPOINTING = ('with_cp', 'grad_checkpointing', 'use_checkpoint')


class Edge(NamedTuple):
    """One output of a node of autograd's graph: the origin of a tensor."""
    node: Any
    index: int

    @classmethod
    def of(cls, value: Any) -> Optional['Edge']:
        """The origin of a tensor; None for other values."""
        if not isinstance(value, Tensor) or value.grad_fn is None:
            return None
        return cls(value.grad_fn, value.output_nr)

    def inputs(self) -> List['Edge']:
        """The origins of the tensors that the node combined."""
        return [Edge(*pair) for pair in self.node.next_functions if pair[0] is not None]

    def is_like(self, pattern: re.Pattern) -> bool:
        """Whether the node's name begins with a pattern."""
        return pattern.match(self.node.name()) is not None

    def without_copies(self, stop: 'Edge') -> 'Edge':
        """The origin of the tensor of which this one is a copy, at most ``stop``."""
        edge = self
        while edge != stop and edge.is_like(COPIES) and len(edge.inputs()) == 1:
            edge, = edge.inputs()
        return edge


@dataclass
class Call:
    """One call of a module in the dry run.

    Attributes:
        name: The module's name in the network.
        module: The module.
        start: Position in the order of all starts and ends.
        end: As ``start``.
        given: The first argument.
        made: The output.
        input: Origin of the first argument.
        output: Origin of the output.
        versions: How often the two tensors had been changed in place.
    """
    name: str
    module: nn.Module
    start: int
    given: Any
    input: Optional[Edge]
    versions: Tuple[int, int]
    end: int = -1
    made: Any = None
    output: Optional[Edge] = None

    def contains(self, other: 'Call') -> bool:
        """Whether another call ran inside this one."""
        return self.start < other.start and other.end < self.end

    def is_feature_map(self) -> bool:
        """Whether the module takes and returns (N, C, H, W)."""
        return all(isinstance(value, Tensor) and value.dim() == 4 and edge is not None
                   for value, edge in ((self.given, self.input), (self.made, self.output)))

    def is_activation(self) -> bool:
        """Whether the module is a leaf without parameters that keeps the shape."""
        return (self.is_feature_map() and self.given.shape == self.made.shape
                and next(self.module.children(), None) is None
                and next(self.module.parameters(), None) is None)


class DryRun:
    """Every call of a module while a network runs on a blank image.

    Args:
        network: The network.
        input_shape: (C, H, W) of the image.

    Attributes:
        calls: The calls that returned, in the order of their starts.
        used: The nodes on which an output of the network depends.
        users: By node, the nodes among ``used`` that take an output of it.
    """

    def __init__(self, network: nn.Module, input_shape: Sequence[int]) -> None:
        self.network = network
        self.calls: List[Call] = []
        self._clock = 0
        weight = next(network.parameters())
        with _in_eval_mode(network), torch.inference_mode(False), torch.enable_grad():
            image = torch.zeros(1, *input_shape, device=weight.device, dtype=weight.dtype,
                                requires_grad=True)
            with self._recording():
                outs = network(image * 1)  # not a leaf: it has an origin in the graph
        self.calls = sorted((call for call in self.calls if call.end > 0),
                            key=lambda call: call.start)
        self.times = Counter(call.name for call in self.calls)
        self.used = set(walk([edge for edge in map(Edge.of, _tensors(outs)) if edge]))
        self.users: Dict[Any, List[Any]] = defaultdict(list)
        for node in self.used:
            for edge in Edge(node, 0).inputs():
                self.users[edge.node].append(node)

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        handles = []
        for name, module in self.network.named_modules():
            open_calls: List[Call] = []
            handles += [
                module.register_forward_pre_hook(self._starts(name, open_calls)),
                module.register_forward_hook(self._ends(open_calls))]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _starts(self, name: str, open_calls: List[Call]):
        def hook(module: nn.Module, args: tuple) -> None:
            self._clock += 1
            given = args[0] if args else None
            call = Call(name, module, self._clock, given, Edge.of(given), (version(given), 0))
            open_calls.append(call)
            self.calls.append(call)
        return hook

    def _ends(self, open_calls: List[Call]):
        def hook(module: nn.Module, args: tuple, made: Any) -> None:
            self._clock += 1
            call = open_calls.pop()
            call.end, call.made, call.output = self._clock, made, Edge.of(made)
            call.versions = (call.versions[0], version(made))
        return hook

    def once(self, call: Call) -> bool:
        """Whether the module of a call was called only once."""
        return self.times[call.name] == 1

    def inside(self, call: Call) -> List[Call]:
        """The calls inside a call."""
        return [other for other in self.calls if call.contains(other)]


@contextlib.contextmanager
def _in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Eval mode without activation checkpointing; afterwards all is as before."""
    before = [(module, name, value) for module in network.modules()
              for name, value in vars(module).items()
              if name == 'training' or (name in CHECKPOINTING and value is True)]
    for module, name, _ in before:
        setattr(module, name, False)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in an output of any structure."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def walk(edges: Sequence[Edge], stop: Collection[Any] = ()) -> Dict[Any, None]:
    """The nodes on which tensors depend, nearest first, up to and with those of ``stop``."""
    seen: Dict[Any, None] = {}
    queue = list(edges)
    while queue:
        following = []
        for edge in queue:
            if edge.node not in seen:
                seen[edge.node] = None
                if edge.node not in stop:
                    following += edge.inputs()
        queue = following
    return seen


def dry_run(network: nn.Module, input_shape: Optional[Sequence[int]]) -> DryRun:
    """Run a network on an image that it takes.

    Args:
        network: Its parameters and buffers are not changed.
        input_shape: (C, H, W) of the blank image. By default 64 x 64 pixels, or
            224 x 224 if the network takes none so small.
    """
    name = type(network).__name__
    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:
        raise ValueError(f'{name} has no Conv2d; the blocks of a hidden path begin with one')
    shapes = [input_shape] if input_shape else [
        (channels, side, side) for channels in dict.fromkeys((first.in_channels, 3))
        for side in SIDES]
    for shape in shapes:
        try:
            return DryRun(network, shape)
        except Exception as error:  # whatever a network raises on a size it does not take
            reason = error
    tried = ' or '.join(str(tuple(shape)) for shape in shapes)
    raise ValueError(
        f'{name} does not run on an image of shape {tried}: {type(reason).__name__}: {reason}. '
        'Set model.backbone.input_shape=(C, H, W) to one that it takes') from reason
