"""Reading other people's weights."""
import re
from typing import Dict, List, Optional, Tuple

from torch import Tensor

# The authors' names on the left, ours on the right; `bn2` is the norm of the
# classifier's h and `fc` the classifier, which a backbone does not have.
_AUTHORS_NAMES = [(re.compile(pattern), name) for pattern, name in (
    (r'stages\.(\d+)\.(\d+)\.(?:se|eca)\.(.+)', 'layer{1}.{2}.attention.{3}'),
    (r'stages\.(\d+)\.(\d+)\.(.+)', 'layer{1}.{2}.{3}'),
    (r'conv_outs\.(\d+)\.(.+)', 'rla.{0}.compress.{2}'),
    (r'recurrent_convs\.(\d+)\.(.+)', 'rla.{0}.recurrent.{2}'),
    (r'stage_bns\.(\d+)\.(\d+)\.(.+)', 'rla.{0}.norms.{2}.{3}'),
)]


def _rename(name: str) -> str:
    for pattern, template in _AUTHORS_NAMES:
        match = pattern.fullmatch(name)
        if match:
            stage, *rest = match.groups()
            return template.format(stage, int(stage) + 1, *rest)
    return name


def from_authors(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Turn the authors' RLA-ResNet weights into an RLAResNet's.

    Their first convolution sees Concat(x, h): the columns for x become the
    block's own convolution, those for h the hidden path's reader. The number
    of columns for h is read off the hidden path's own weights.

    Args:
        state: Entries under the authors' names, with no prefix before them.

    Returns:
        dict[str, Tensor]: The same values under our names. What belongs to a
        classifier keeps its name.
    """
    k = state['recurrent_convs.0.weight'].shape[0]
    renamed = {}
    for name, value in state.items():
        block = re.fullmatch(r'stages\.(\d+)\.(\d+)\.conv1\.weight', name)
        if block:
            renamed[f'rla.{block[1]}.readers.{block[2]}.weight'] = value[:, -k:].contiguous()
            value = value[:, :-k].contiguous()
        renamed[_rename(name)] = value
    return renamed


# Of the authors' MobileNetV2, whose last component (`weight`, ...) stays: where
# an entry goes. With a dimension, its last k rows (0) or columns (1) are for h
# and go to the second place; without one, all places get the whole entry.
_BLOCK = r'stages\.(?P<group>\d+)\.(?P<block>\d+)'
_MOBILENET_V2_PLACES = [(re.compile(pattern), dim, places) for pattern, dim, *places in (
    (r'conv1\.0', None, 'conv1.conv'),
    (r'conv1\.1', None, 'conv1.bn'),
    (_BLOCK + r'\.conv1x1\.0', None, 'layer{layer}.{block}.expand_conv.conv'),
    (_BLOCK + r'\.conv1x1\.1', None, 'layer{layer}.{block}.expand_conv.bn'),
    (_BLOCK + r'\.conv\.0\.0', 0, 'layer{layer}.{block}.depthwise_conv.conv',
     'rla.{group}.readers.{block}.depthwise_conv.conv'),
    (_BLOCK + r'\.conv\.0\.1', 0, 'layer{layer}.{block}.depthwise_conv.bn',
     'rla.{group}.readers.{block}.depthwise_conv.bn'),
    (_BLOCK + r'\.conv\.1', 1, 'layer{layer}.{block}.linear_conv.conv',
     'rla.{group}.readers.{block}.linear_conv.conv'),
    (_BLOCK + r'\.conv\.2', None, 'layer{layer}.{block}.linear_conv.bn'),
    (_BLOCK + r'\.eca\.conv', None, 'layer{layer}.{block}.attention.conv'),
    (r'conv_outs\.(?P<group>\d+)', None, 'rla.{group}.compress'),
    # Five stages for seven groups of blocks.
    (r'recurrent_dsconvs\.(?P<group>[012])', None, 'rla.{group}.recurrent'),
    (r'recurrent_dsconvs\.3', None, 'rla.3.recurrent', 'rla.4.recurrent'),
    (r'recurrent_dsconvs\.4', None, 'rla.5.recurrent', 'rla.6.recurrent'),
    (r'stage_bns\.(?P<group>\d+)\.(?P<block>\d+)', None, 'rla.{group}.norms.{block}'),
    (r'conv2\.0', 1, 'conv2.conv', 'conv2_reader.conv'),
    (r'conv2\.1', None, 'conv2.bn'),
    (r'bn2', None, 'conv2_reader.bn'),
)]


def _mobilenet_v2_places(module: str) -> Tuple[Optional[int], List[str]]:
    """Where the entries of one of the authors' modules go, and how they split."""
    for pattern, dim, places in _MOBILENET_V2_PLACES:
        match = pattern.fullmatch(module)
        if match:
            numbers = {key: int(number) for key, number in match.groupdict().items()}
            layer = numbers.get('group', 0) + 1
            return dim, [place.format(layer=layer, **numbers) for place in places]
    return None, [module]


def from_authors_mobilenet_v2(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Turn the authors' RLA-MobileNetV2 weights into an RLAMobileNetV2's.

    Their depthwise and linear convolutions and their last convolution see
    Concat(x, h); what they have for h becomes the hidden path's readers.

    Their five entries for the recurrent convolution, one a stage, are one
    object in the published code and so equal in its files: they fit either
    value of ``shared_recurrent``.

    Args:
        state: Entries under the authors' names, with no prefix before them.

    Returns:
        dict[str, Tensor]: The same values under our names. What belongs to a
        classifier keeps its name.
    """
    k = state['conv_outs.0.weight'].shape[0]
    renamed = {}
    for name, value in state.items():
        module, leaf = name.rsplit('.', 1)
        dim, places = _mobilenet_v2_places(module)
        parts = [value] * len(places)
        if dim is not None and value.dim() > dim:  # a norm's counter is one number
            parts = value.split([value.shape[dim] - k, k], dim)
        renamed.update((f'{place}.{leaf}', part.contiguous())
                       for place, part in zip(places, parts, strict=True))
    return renamed
