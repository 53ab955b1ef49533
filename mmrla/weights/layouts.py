"""State-dict keys of other projects, and the keys of mmrla that correspond to them.

A layout is a table of rules. Each rule maps a module name of the other project to one or
more module names of mmrla. The layout of a file is detected from its keys. The rules of the
authors' layouts are applied in both directions.
"""
import re
from collections import OrderedDict
from functools import cache
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

import torch
from torch import Tensor

from mmrla.models.backbones.mobilenet_v2 import RLAMobileNetV2
from mmrla.models.rla import RLAConfig

from .errors import CheckpointError
from .reading import metadata_of, source_of, weights_key

BACKBONE = 'backbone.'


class Rule(NamedTuple):
    """How the entries of a module are renamed.

    A name may contain fields for numbers: ``{block}``, ``{index}``, and ``{group}`` (from 0) or
    ``{layer}`` (from 1) for a stage. ``{rest}`` matches any end of a name.

    Attributes:
        theirs: The name of the module in the layout.
        ours: Its names in a backbone of mmrla, usually one.
        split: Set for a convolution of Concat(x, h): the last k entries along this
            dimension belong to h and go to the second of ``ours``. None gives the
            whole entry to all of ``ours``.
    """
    theirs: str
    ours: Tuple[str, ...]
    split: Optional[int] = None


class Layout(NamedTuple):
    """The state-dict keys of a network in another project.

    Attributes:
        title: The name of the layout in reports.
        marks: Keys that together identify the layout, as patterns.
        rules: The rules for the backbone. The first that matches applies; a module that
            no rule matches keeps its name.
        ends: The modules of a classifier after the backbone.
        variant: The update of the hidden path that the project computes.
    """
    title: str
    marks: Tuple[str, ...]
    rules: Tuple[Rule, ...] = ()
    ends: Dict[str, str] = dict(fc='head.fc')
    variant: Optional[str] = None


def _torchvision_mobilenet_v2() -> Iterator[Rule]:
    """The rules of torchvision's MobileNetV2, which numbers all blocks through."""
    yield Rule('features.0.0', ('conv1.conv',))
    yield Rule('features.0.1', ('conv1.bn',))
    index = 1
    for layer, (ratio, _, num_blocks, _) in enumerate(RLAMobileNetV2.arch_settings, 1):
        for block in range(num_blocks):
            theirs, ours = f'features.{index}.conv', f'layer{layer}.{block}'
            convs = ['depthwise_conv'] if ratio == 1 else ['expand_conv', 'depthwise_conv']
            for i, conv in enumerate(convs):
                yield Rule(f'{theirs}.{i}.0', (f'{ours}.{conv}.conv',))
                yield Rule(f'{theirs}.{i}.1', (f'{ours}.{conv}.bn',))
            yield Rule(f'{theirs}.{len(convs)}', (f'{ours}.linear_conv.conv',))
            yield Rule(f'{theirs}.{len(convs) + 1}', (f'{ours}.linear_conv.bn',))
            index += 1
    yield Rule(f'features.{index}.0', ('conv2.conv',))
    yield Rule(f'features.{index}.1', ('conv2.bn',))


def _deep_stem(convs: Tuple[str, ...], norms: Tuple[str, ...]) -> Tuple[Rule, ...]:
    """The rules for a stem of three convolutions, each with a norm.

    Args:
        convs: The names of the convolutions.
        norms: The names of their norms.
    """
    # mmdet's stem is a sequence of convolution, norm, ReLU, convolution, norm, ...
    return tuple(Rule(theirs, (f'stem.{3 * i + offset}',))
                 for offset, names in enumerate((convs, norms))
                 for i, theirs in enumerate(names))


# mmrla's names are those of mmdet. Most projects use them for ResNets.
OWN = Layout('mmdet\'s names', ())
AUTHORS_RESNET = Layout(
    'the authors\' RLA-ResNet', (r'recurrent_convs\.\d+\.weight',),
    rules=(
        Rule('conv1', ('conv1',)),
        Rule('bn1', ('bn1',)),
        Rule('stages.{group}.{block}.conv1',
             ('layer{layer}.{block}.conv1', 'rla.{group}.readers.{block}'), split=1),
        Rule('stages.{group}.{block}.se.fc.{index}',
             ('layer{layer}.{block}.attention.fc.{index}',)),
        Rule('stages.{group}.{block}.eca.conv', ('layer{layer}.{block}.attention.conv',)),
        Rule('stages.{group}.{block}.{rest}', ('layer{layer}.{block}.{rest}',)),
        Rule('conv_outs.{group}', ('rla.{group}.compress',)),
        Rule('recurrent_convs.{group}', ('rla.{group}.recurrent',)),
        Rule('stage_bns.{group}.{block}', ('rla.{group}.norms.{block}',)),
    ),
    ends=dict(bn2='neck.norm', fc='head.fc'),
    # It adds the shortcut to y in place, so that g1 sees x' (variant v3).
    variant='v3')
AUTHORS_MOBILENET_V2 = Layout(
    'the authors\' RLA-MobileNetV2', (r'recurrent_dsconvs\.\d+\.weight',),
    rules=(
        Rule('conv1.0', ('conv1.conv',)),
        Rule('conv1.1', ('conv1.bn',)),
        Rule('stages.{group}.{block}.conv1x1.0', ('layer{layer}.{block}.expand_conv.conv',)),
        Rule('stages.{group}.{block}.conv1x1.1', ('layer{layer}.{block}.expand_conv.bn',)),
        Rule('stages.{group}.{block}.conv.0.0',
             ('layer{layer}.{block}.depthwise_conv.conv',
              'rla.{group}.readers.{block}.depthwise_conv.conv'), split=0),
        Rule('stages.{group}.{block}.conv.0.1',
             ('layer{layer}.{block}.depthwise_conv.bn',
              'rla.{group}.readers.{block}.depthwise_conv.bn'), split=0),
        Rule('stages.{group}.{block}.conv.1',
             ('layer{layer}.{block}.linear_conv.conv',
              'rla.{group}.readers.{block}.linear_conv.conv'), split=1),
        Rule('stages.{group}.{block}.conv.2', ('layer{layer}.{block}.linear_conv.bn',)),
        Rule('stages.{group}.{block}.eca.conv', ('layer{layer}.{block}.attention.conv',)),
        Rule('conv_outs.{group}', ('rla.{group}.compress',)),
        # Five stages for seven groups of blocks. In the published code the five
        # are one object and so equal in its files: they fit either value of
        # shared_recurrent.
        Rule('recurrent_dsconvs.3', ('rla.3.recurrent', 'rla.4.recurrent')),
        Rule('recurrent_dsconvs.4', ('rla.5.recurrent', 'rla.6.recurrent')),
        Rule('recurrent_dsconvs.{group}', ('rla.{group}.recurrent',)),
        Rule('stage_bns.{group}.{block}', ('rla.{group}.norms.{block}',)),
        Rule('conv2.0', ('conv2.conv', 'conv2_reader.conv'), split=1),
        Rule('conv2.1', ('conv2.bn',)),
        Rule('bn2', ('conv2_reader.bn',)),
    ),
    ends={'classifier.1': 'head.fc'},
    variant='v1')
TORCHVISION_MOBILENET_V2 = Layout(
    'torchvision\'s MobileNetV2', (r'features\.0\.0\.weight',),
    rules=tuple(_torchvision_mobilenet_v2()),
    ends={'classifier.1': 'head.fc'})
MMPRETRAIN_MOBILENET_V2 = Layout(
    'mmpretrain\'s MobileNetV2', (r'layer2\.0\.conv\.0\.conv\.weight',),
    rules=(
        Rule('layer1.0.conv.0.{rest}', ('layer1.0.depthwise_conv.{rest}',)),
        Rule('layer1.0.conv.1.{rest}', ('layer1.0.linear_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.0.{rest}', ('layer{layer}.{block}.expand_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.1.{rest}', ('layer{layer}.{block}.depthwise_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.2.{rest}', ('layer{layer}.{block}.linear_conv.{rest}',)),
    ))
MMPRETRAIN_RESNET_V1C = Layout(
    'mmpretrain\'s ResNetV1c', (r'stem\.0\.conv\.weight',),
    rules=_deep_stem(('stem.0.conv', 'stem.1.conv', 'stem.2.conv'),
                     ('stem.0.bn', 'stem.1.bn', 'stem.2.bn')))
MMPRETRAIN_RESNET_V1D = Layout(
    'mmpretrain\'s ResNetV1d',
    (*MMPRETRAIN_RESNET_V1C.marks, r'layer1\.0\.downsample\.0\.weight',
     r'layer2\.0\.downsample\.2\.weight'),
    rules=(
        *MMPRETRAIN_RESNET_V1C.rules,
        # mmdet has an average pooling in this shortcut too, of stride 1.
        Rule('layer1.0.downsample.0', ('layer1.0.downsample.1',)),
        Rule('layer1.0.downsample.1', ('layer1.0.downsample.2',)),
    ))
TIMM_DEEP_STEM = Layout(
    'timm\'s ResNet with a deep stem', (r'conv1\.0\.weight', r'conv1\.3\.weight', r'bn1\.weight'),
    rules=_deep_stem(('conv1.0', 'conv1.3', 'conv1.6'), ('conv1.1', 'conv1.4', 'bn1')))
# A layout whose marks include those of another one comes first. The last matches every file.
LAYOUTS = (AUTHORS_RESNET, AUTHORS_MOBILENET_V2, TORCHVISION_MOBILENET_V2,
           MMPRETRAIN_MOBILENET_V2, MMPRETRAIN_RESNET_V1D, MMPRETRAIN_RESNET_V1C, TIMM_DEEP_STEM,
           OWN)


class Weights(NamedTuple):
    """The weights of a file, with the state-dict keys of a whole model of mmrla.

    Attributes:
        source: The name of the file.
        layout: The layout of the file.
        entries: The tensors by mmrla's keys. The keys of a backbone begin with ``backbone.``,
            also if they do not in the file.
        names: The key in the file of each entry.
        update: The settings of the hidden path that the file reveals, as keys of
            ``rla=dict(...)``.
        new_parts: The parts that were new in the run that saved the file.
    """
    source: str
    layout: Layout
    entries: Dict[str, Tensor]
    names: Dict[str, str]
    update: Dict[str, Any]
    new_parts: Tuple[str, ...] = ()

    @property
    def backbone(self) -> Dict[str, Tensor]:
        """dict[str, Tensor]: The entries of the backbone, by its own keys."""
        return {name.removeprefix(BACKBONE): value for name, value in self.entries.items()
                if name.startswith(BACKBONE)}

    @property
    def renamed(self) -> List[str]:
        """list[str]: The keys of the backbone that differ from those in the file."""
        return [name.removeprefix(BACKBONE) for name, theirs in self.names.items()
                if name.startswith(BACKBONE)
                and name.removeprefix(BACKBONE) != theirs.removeprefix(BACKBONE)]

    @property
    def has_hidden_path(self) -> bool:
        """bool: Whether the weights are those of an RLA network."""
        return any(name.startswith(f'{BACKBONE}rla.') for name in self.entries)


@cache
def _pattern(template: str) -> re.Pattern:
    """The regular expression of a name in a rule."""
    kinds = dict(rest='.+')
    parts = re.split(r'\{(\w+)\}', template)
    names = [f'(?P<{name}>{kinds.get(name, "[0-9]+")})' for name in parts[1::2]]
    texts = [re.escape(text) for text in parts[::2]]
    return re.compile(''.join(text + name for text, name in zip(texts, [*names, ''], strict=True)))


def _match(template: str, module: str) -> Optional[Dict[str, Any]]:
    """The fields of a module's name, or None if the name does not match the template."""
    match = _pattern(template).fullmatch(module)
    if match is None:
        return None
    fields = match.groupdict()
    if 'layer' in fields:
        fields['group'] = int(fields['layer']) - 1
    elif 'group' in fields:
        fields['layer'] = int(fields['group']) + 1
    return fields


def _places(layout: Layout, module: str) -> Tuple[Optional[Rule], List[str]]:
    """The rule for a module of the layout, and the names of the module in mmrla."""
    for rule in layout.rules:
        fields = _match(rule.theirs, module)
        if fields is not None:
            return rule, [name.format(**fields) for name in rule.ours]
    return None, [module]


def _split(value: Tensor, rule: Optional[Rule], k: int) -> List[Tensor]:
    """Split an entry into one part for each name in the rule."""
    if rule is None:
        return [value]
    if rule.split is None or value.dim() <= rule.split:  # a norm's counter is one number
        return [value] * len(rule.ours)
    sizes = [value.shape[rule.split] - k, k]
    return [part.contiguous() for part in value.split(sizes, rule.split)]


def weights_of(checkpoint: Dict[str, Any]) -> Dict[str, Tensor]:
    """The weights in a checkpoint of any project, without the prefix of DDP."""
    key = weights_key(checkpoint)
    saved = checkpoint if key is None else checkpoint[key]
    state = OrderedDict(
        (name, value) for name, value in saved.items() if isinstance(value, Tensor))
    if not state:
        raise CheckpointError(f'checkpoint {source_of(saved)} holds no weights: '
                              f'{_contents(checkpoint)}')
    if any(name.startswith('module.') for name in state):  # an averaged model also has `steps`
        state = OrderedDict(
            (name.removeprefix('module.'), value) for name, value in state.items())
    state._metadata = metadata_of(saved)
    return state


def revised(state: Dict[str, Tensor], rules: Iterable[Tuple[str, str]]) -> Dict[str, Tensor]:
    """A state dict whose keys were changed by patterns and their replacements."""
    revised_state = OrderedDict()
    for name, value in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        revised_state[name] = value
    revised_state._metadata = metadata_of(state)
    return revised_state


def _contents(checkpoint: Dict[str, Any]) -> str:
    """Describe a checkpoint without weights."""
    return f'its keys are {", ".join(map(repr, list(checkpoint)[:5]))}' if checkpoint else (
        'it is an empty dict')


def new_parts_of(state: Dict[str, Tensor]) -> Tuple[str, ...]:
    """The names of the parts that the file's run started without pretrained weights."""
    modules = metadata_of(state)
    found = (module.get('new_parts') for module in modules.values() if isinstance(module, dict))
    return next((tuple(parts) for parts in found if isinstance(parts, (list, tuple))), ())


def update_of(state: Dict[str, Tensor]) -> Dict[str, Any]:
    """The ``rla=dict(...)`` that mmrla saved with the weights."""
    modules = metadata_of(state)
    updates = (module.get('rla') for module in modules.values() if isinstance(module, dict))
    return next((dict(update) for update in updates if isinstance(update, dict)), {})


def recognise(state: Dict[str, Tensor], known: Collection[str] = ()) -> Tuple[str, Layout]:
    """Return the prefix of the backbone's entries, and the layout of a file.

    Args:
        state: The weights of a file.
        known: The names of the entries of the backbone that will load them. Names of a
            layout that are among them do not identify the layout.
    """
    prefix = BACKBONE if any(name.startswith(BACKBONE) for name in state) else ''
    names = {name.removeprefix(prefix) for name in state if name.startswith(prefix)}
    # mmrla saved a file that has a hidden path under its names.
    if any(name.startswith('rla.') for name in names):
        return prefix, OWN
    return prefix, next(layout for layout in LAYOUTS if _is_marked(layout, names, known))


def _is_marked(layout: Layout, names: Collection[str], known: Collection[str]) -> bool:
    """Whether the keys of a file have all marks of a layout, and those of the network do not."""
    def has_marks(keys: Collection[str]) -> bool:
        return all(any(re.match(mark, key) for key in keys) for mark in layout.marks)

    return not layout.marks or (has_marks(names) and not has_marks(known))


def to_ours(state: Dict[str, Tensor], known: Collection[str] = ()) -> Weights:
    """Convert weights from any of ``LAYOUTS`` to the keys of mmrla.

    Args:
        state: The weights of a backbone, a classifier or a detector, as
            :func:`weights_of` returns them.
        known: See :func:`recognise`.

    Returns:
        Weights: The same values with mmrla's keys.
    """
    prefix, layout = recognise(state, known)
    update = update_of(state)
    k = 0
    if layout.variant is not None:
        k = _hidden_channels(state, prefix, layout)
        update = dict(variant=layout.variant)
    entries: Dict[str, Tensor] = OrderedDict()
    names = {}
    for name, value in state.items():
        try:
            for place, part in _to_our_places(layout, prefix, name, value, k):
                entries[place] = part
                names[place] = name
        except RuntimeError as error:
            raise CheckpointError(
                f'checkpoint {source_of(state)} looks like {layout.title}, but {name} has shape '
                f'{tuple(value.shape)}: {error}') from error
    return Weights(source_of(state), layout, entries, names, _with_channels(update, entries),
                   new_parts_of(state))


def _hidden_channels(state: Dict[str, Tensor], prefix: str, layout: Layout) -> int:
    """The number of hidden channels k, from the shape of the authors' first 1x1 convolution."""
    name = f'{prefix}conv_outs.0.weight'
    if name not in state:
        raise CheckpointError(f'checkpoint {source_of(state)} looks like {layout.title}, but '
                              f'{name} is missing')
    return len(state[name])


def _to_our_places(layout: Layout, prefix: str, name: str, value: Tensor, k: int
                   ) -> Iterator[Tuple[str, Tensor]]:
    """Yield the keys and values of one entry in a whole model of mmrla."""
    module, leaf = _parent_and_leaf(name)
    if not prefix and module in layout.ends:
        yield f'{layout.ends[module]}.{leaf}', value
    elif not name.startswith(prefix):  # a detector's neck and heads
        yield name, value
    else:
        rule, places = _places(layout, module.removeprefix(prefix))
        for place, part in zip(places, _split(value, rule, k), strict=True):
            yield BACKBONE + (f'{place}.{leaf}' if place else leaf), part


def _parent_and_leaf(name: str) -> Tuple[str, str]:
    """Split ``layer1.0.conv1.weight`` into ``layer1.0.conv1`` and ``weight``."""
    module, _, leaf = name.rpartition('.')
    return module, leaf


def _with_channels(update: Dict[str, Any], entries: Dict[str, Tensor]) -> Dict[str, Any]:
    """Add the number of hidden channels, from the shape of a norm of the hidden path."""
    norm = entries.get(f'{BACKBONE}rla.0.norms.0.weight')
    return update if norm is None else dict(update, channels=len(norm))


def as_dict(values: Dict[str, Any]) -> str:
    """Write keys and values as in a config."""
    return 'dict(' + ', '.join(f'{key}={value!r}' for key, value in values.items()) + ')'


def to_authors(weights: Weights) -> Dict[str, Tensor]:
    """Convert weights to the keys and shapes of the authors' program.

    Args:
        weights: The weights of an RLA-ResNet or RLA-MobileNetV2. A detector gets the keys
            of the authors' mmdet 2.x detectors.
    """
    backbone = weights.backbone
    layout = AUTHORS_MOBILENET_V2 if 'layer1.0.linear_conv.conv.weight' in backbone else (
        AUTHORS_RESNET)
    if not weights.has_hidden_path:
        raise CheckpointError(f'checkpoint {weights.source} is of a plain network; '
                              'the authors\' layout has RLA networks only')
    theirs = RLAConfig(weights.update['channels'], layout.variant).update()
    other = {key: value for key, value in weights.update.items()
             if theirs.get(key, value) != value}
    if other:
        raise CheckpointError(
            f'checkpoint {weights.source} was trained with rla={as_dict(other)}, and the authors\' '
            f'program computes rla={as_dict({key: theirs[key] for key in other})}: it would give '
            'other results with these weights')
    outside = {name: value for name, value in weights.entries.items()
               if not name.startswith(BACKBONE)}
    ends = {ours: theirs for theirs, ours in layout.ends.items()}
    is_detector = bool(outside) and 'head.fc.weight' not in outside
    state = OrderedDict()
    for name in backbone:
        module, leaf = _parent_and_leaf(name)
        theirs = _join(layout, backbone, module, leaf, weights.source)
        state.update({f'{BACKBONE if is_detector else ""}{key}': joined
                      for key, joined in theirs.items()})
    for name, value in outside.items():
        module, leaf = _parent_and_leaf(name)
        state[f'{ends.get(module, module)}.{leaf}' if not is_detector else name] = value
    return state


def _join(layout: Layout, backbone: Dict[str, Tensor], module: str, leaf: str,
          source: str) -> Dict[str, Tensor]:
    """The authors' entry for an entry of mmrla; empty if it is a part of another one."""
    for rule in layout.rules:
        for i, ours in enumerate(rule.ours):
            fields = _match(ours, module)
            if fields is None:
                continue
            if i > 0:  # it is joined to the first of the rule's names
                return {}
            joined = backbone[f'{module}.{leaf}']
            if rule.split is not None and joined.dim() > rule.split:
                second = f'{rule.ours[1].format(**fields)}.{leaf}'
                if second not in backbone:
                    raise CheckpointError(f'checkpoint {source}: {second} is missing')
                joined = torch.cat([joined, backbone[second]], rule.split)
            return {f'{rule.theirs.format(**fields)}.{leaf}': joined}
    raise CheckpointError(f'checkpoint {source}: {module}.{leaf} has no place in the authors\' '
                          'program')
