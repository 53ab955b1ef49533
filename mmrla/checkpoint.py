"""Reading other people's weights."""
import re
from typing import Dict

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
