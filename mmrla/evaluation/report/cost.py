"""The cost of a run's backbone beside the same backbone without RLA."""
import copy
import time
from typing import Any, Dict, Optional, Tuple

import torch
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmrla.paper.counts import count_flops, count_parameters

from .runs import Run

TIMED_SIZE = (320, 320)
ROUNDS = 3


def plain_config(backbone: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The config of the same backbone without RLA; None if it has no RLA."""
    if isinstance(backbone.get('backbone'), dict):  # WithRLA
        return copy.deepcopy(backbone['backbone'])
    if not backbone.get('rla'):
        return None
    plain = copy.deepcopy(dict(backbone))
    plain['rla'] = None
    return plain


def measure(run: Run) -> Optional[Dict[str, Any]]:
    """Parameters, multiply-adds and time; None if the model cannot be built here."""
    model = run.config.get('model') or {}
    if 'backbone' not in model:
        return None
    init_default_scope(run.config.get('default_scope', 'mmdet'))
    backbone = copy.deepcopy(dict(model['backbone']))
    size = _size(run)
    try:
        detector = _parameters(model)
        ours, flops = _build(backbone, size)
        plain_cfg = plain_config(backbone)
        plain, plain_flops = _build(plain_cfg, size) if plain_cfg else (None, None)
    except Exception as error:  # a config of another version, or of modules that are not here
        return dict(problem=f'{type(error).__name__}: {str(error).splitlines()[0][:200]}')
    result = dict(size=size, detector=detector, parameters=count_parameters(ours), flops=flops,
                  plain=None)
    if plain is not None:
        seconds = _times(ours, plain)
        result['plain'] = dict(parameters=count_parameters(plain), flops=plain_flops,
                               seconds=seconds[1])
        result['seconds'] = seconds[0]
        result['timed'] = TIMED_SIZE
    return result


def _size(run: Run) -> Tuple[int, int]:
    """(height, width) that the test pipeline scales to."""
    dataset = (run.config.get('test_dataloader') or {}).get('dataset') or {}
    for transform in dataset.get('pipeline') or []:
        if transform.get('type') in ('Resize', 'mmdet.Resize') and transform.get('scale'):
            long, short = max(transform['scale']), min(transform['scale'])
            return int(short), int(long)
    return 224, 224


def _build(config: Dict[str, Any], size: Tuple[int, int]) -> Tuple[nn.Module, int]:
    """A backbone, and its multiply-adds for one image."""
    config = {**config, 'init_cfg': None}
    backbone = MODELS.build(config).eval()
    with torch.device('meta'):
        counted = MODELS.build(copy.deepcopy(config)).eval().to('meta')
    return backbone, count_flops(counted, size)


def _parameters(model: Dict[str, Any]) -> int:
    """The parameters of a whole detector."""
    model = copy.deepcopy(dict(model))
    model['backbone']['init_cfg'] = None
    with torch.device('meta'):
        return count_parameters(MODELS.build(model))


@torch.inference_mode()
def _times(*networks: nn.Module) -> list:
    """The seconds of one image on this machine's CPU; the networks take turns."""
    images = torch.zeros(1, 3, *TIMED_SIZE)
    best = [float('inf')] * len(networks)
    for _ in range(ROUNDS):
        for number, network in enumerate(networks):
            start = time.perf_counter()
            network(images)
            best[number] = min(best[number], time.perf_counter() - start)
    return best
