"""Other people's weights: how a file's entries are called, and where they go here.

A layout is a table of rules, each from the name of one of their modules to its
places with us. A file's layout is seen from the names in it, and the rules are
followed in either direction.
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
    """Where the entries of a module go.

    A name may hold numbers: ``{group}``, from 0, or the same from 1 as
    ``{layer}``, ``{block}`` and ``{index}``; ``{rest}`` is any end of a name.

    Attributes:
        theirs: The module's name in the layout.
        ours: Its name in a backbone of ours, or its names if there are several.
        split: Their convolution sees Concat(x, h): the last k entries along
            this dimension are for h and go to the second of ``ours``. None
            gives the whole entry to all of ``ours``.
    """
    theirs: str
    ours: Tuple[str, ...]
    split: Optional[int] = None


class Layout(NamedTuple):
    """How a program calls the entries of a network.

    Attributes:
        title: What the layout is called in reports.
        mark: A pattern for the name of an entry that no other layout has.
        rules: The rules for the backbone; the first that fits counts. What
            none fits keeps its name.
        ends: Of a classifier, the modules behind the backbone.
        variant: The update that the program computes.
    """
    title: str
    mark: str
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


# mmrla's names are those of mmdet, which for ResNets are everybody's.
OWN = Layout('mmdet\'s names', '')
AUTHORS_RESNET = Layout(
    'the authors\' RLA-ResNet', r'recurrent_convs\.\d+\.weight',
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
    'the authors\' RLA-MobileNetV2', r'recurrent_dsconvs\.\d+\.weight',
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
    'torchvision\'s MobileNetV2', r'features\.0\.0\.weight',
    rules=tuple(_torchvision_mobilenet_v2()),
    ends={'classifier.1': 'head.fc'})
MMPRETRAIN_MOBILENET_V2 = Layout(
    'mmpretrain\'s MobileNetV2', r'layer2\.0\.conv\.0\.conv\.weight',
    rules=(
        Rule('layer1.0.conv.0.{rest}', ('layer1.0.depthwise_conv.{rest}',)),
        Rule('layer1.0.conv.1.{rest}', ('layer1.0.linear_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.0.{rest}', ('layer{layer}.{block}.expand_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.1.{rest}', ('layer{layer}.{block}.depthwise_conv.{rest}',)),
        Rule('layer{layer}.{block}.conv.2.{rest}', ('layer{layer}.{block}.linear_conv.{rest}',)),
    ))
# The last fits everything.
LAYOUTS = (AUTHORS_RESNET, AUTHORS_MOBILENET_V2, TORCHVISION_MOBILENET_V2,
           MMPRETRAIN_MOBILENET_V2, OWN)


class Weights(NamedTuple):
    """The weights of a file under the names of a whole model of ours.

    Attributes:
        source: The file.
        layout: How the file calls them.
        entries: A backbone's entries begin with ``backbone.``, whether or not
            they do in the file.
        names: What each entry is called in the file.
        update: What is known of what the hidden path computes: keys of
            ``rla=dict(...)``. Empty where the file does not tell.
        new_parts: The parts that were new when the run began that saved the file.
    """
    source: str
    layout: Layout
    entries: Dict[str, Tensor]
    names: Dict[str, str]
    update: Dict[str, Any]
    new_parts: Tuple[str, ...] = ()

    @property
    def backbone(self) -> Dict[str, Tensor]:
        """dict[str, Tensor]: The entries of the backbone, under its own names."""
        return {name.removeprefix(BACKBONE): value for name, value in self.entries.items()
                if name.startswith(BACKBONE)}

    @property
    def renamed(self) -> List[str]:
        """list[str]: The backbone's entries, as it calls them, that a rule named."""
        return [name.removeprefix(BACKBONE) for name, theirs in self.names.items()
                if name.startswith(BACKBONE)
                and name.removeprefix(BACKBONE) != theirs.removeprefix(BACKBONE)]

    @property
    def has_hidden_path(self) -> bool:
        """bool: Whether these are weights of an RLA network."""
        return any(name.startswith(f'{BACKBONE}rla.') for name in self.entries)


@cache
def _pattern(template: str) -> re.Pattern:
    """What a rule's name matches."""
    kinds = dict(rest='.+')
    parts = re.split(r'\{(\w+)\}', template)
    names = [f'(?P<{name}>{kinds.get(name, "[0-9]+")})' for name in parts[1::2]]
    texts = [re.escape(text) for text in parts[::2]]
    return re.compile(''.join(text + name for text, name in zip(texts, [*names, ''], strict=True)))


def _match(template: str, module: str) -> Optional[Dict[str, Any]]:
    """The numbers in a module's name, or None if the rule's name is another."""
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
    """The rule for one of their modules, and the module's places with us."""
    for rule in layout.rules:
        fields = _match(rule.theirs, module)
        if fields is not None:
            return rule, [name.format(**fields) for name in rule.ours]
    return None, [module]


def _split(value: Tensor, rule: Optional[Rule], k: int) -> List[Tensor]:
    """An entry's parts, one for each place."""
    if rule is None:
        return [value]
    if rule.split is None or value.dim() <= rule.split:  # a norm's counter is one number
        return [value] * len(rule.ours)
    sizes = [value.shape[rule.split] - k, k]
    return [part.contiguous() for part in value.split(sizes, rule.split)]


def weights_of(checkpoint: Dict[str, Any]) -> Dict[str, Tensor]:
    """The weights in a checkpoint, whoever saved it, without DDP's prefix."""
    key = weights_key(checkpoint)
    saved = checkpoint if key is None else checkpoint[key]
    state = OrderedDict(
        (name, value) for name, value in saved.items() if isinstance(value, Tensor))
    if not state:
        raise CheckpointError(f'checkpoint {source_of(saved)} holds no weights: '
                              f'{_contents(checkpoint)}')
    if any(name.startswith('module.') for name in state):  # an average has `steps` beside them
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
    """What a checkpoint without weights has."""
    return f'its keys are {", ".join(map(repr, list(checkpoint)[:5]))}' if checkpoint else (
        'it is an empty dict')


def new_parts_of(state: Dict[str, Tensor]) -> Tuple[str, ...]:
    """The parts that a run trained although the rest of its weights was pretrained."""
    modules = metadata_of(state)
    found = (module.get('new_parts') for module in modules.values() if isinstance(module, dict))
    return next((tuple(parts) for parts in found if isinstance(parts, (list, tuple))), ())


def update_of(state: Dict[str, Tensor]) -> Dict[str, Any]:
    """The ``rla=dict(...)`` that a network of ours saved with its weights."""
    modules = metadata_of(state)
    updates = (module.get('rla') for module in modules.values() if isinstance(module, dict))
    return next((dict(update) for update in updates if isinstance(update, dict)), {})


def recognise(state: Dict[str, Tensor], known: Collection[str] = ()) -> Tuple[str, Layout]:
    """The prefix of the backbone's entries, and how they are called.

    Args:
        state: The weights of a file.
        known: The names of the entries of the backbone that will load them. A file
            whose backbone entries mostly have these names needs no rules.
    """
    prefix = BACKBONE if any(name.startswith(BACKBONE) for name in state) else ''
    names = {name.removeprefix(prefix) for name in state if name.startswith(prefix)}
    if 2 * len(names.intersection(known)) > len(names):
        return prefix, OWN
    layout = next(layout for layout in LAYOUTS
                  if any(re.match(layout.mark, name) for name in names))
    # mmrla saved a file with a hidden path of its own, so the names are right.
    is_own = any(name.startswith('rla.') for name in names)
    return prefix, OWN if is_own else layout


def to_ours(state: Dict[str, Tensor], known: Collection[str] = ()) -> Weights:
    """Give weights the names they have in a model of ours.

    Args:
        state: The weights of a backbone, a classifier or a detector, in any
            of ``LAYOUTS``; what :func:`weights_of` returns.
        known: See :func:`recognise`.

    Returns:
        Weights: The same values.
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
    """k, read off the authors' first 1x1 convolution."""
    name = f'{prefix}conv_outs.0.weight'
    if name not in state:
        raise CheckpointError(f'checkpoint {source_of(state)} looks like {layout.title}, but '
                              f'{name} is missing')
    return len(state[name])


def _to_our_places(layout: Layout, prefix: str, name: str, value: Tensor, k: int
                   ) -> Iterator[Tuple[str, Tensor]]:
    """Where one entry of a file goes in a whole model of ours."""
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
    """``layer1.0.conv1.weight`` to ``layer1.0.conv1`` and ``weight``."""
    module, _, leaf = name.rpartition('.')
    return module, leaf


def _with_channels(update: Dict[str, Any], entries: Dict[str, Tensor]) -> Dict[str, Any]:
    """Add k, which any norm of a hidden path shows."""
    norm = entries.get(f'{BACKBONE}rla.0.norms.0.weight')
    return update if norm is None else dict(update, channels=len(norm))


def as_dict(values: Dict[str, Any]) -> str:
    """How a config writes some keys."""
    return 'dict(' + ', '.join(f'{key}={value!r}' for key, value in values.items()) + ')'


def to_authors(weights: Weights) -> Dict[str, Tensor]:
    """Give weights the names and shapes they have in the authors' program.

    Args:
        weights: Of an RLA-ResNet or RLA-MobileNetV2. A backbone or classifier
            becomes one of theirs, a detector one of their mmdet 2.x detectors.
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
    """Their entry for one of ours; none where it is part of another's."""
    for rule in layout.rules:
        for i, ours in enumerate(rule.ours):
            fields = _match(ours, module)
            if fields is None:
                continue
            if i > 0:  # it stands behind the first of the rule's names
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
