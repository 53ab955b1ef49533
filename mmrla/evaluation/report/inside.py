"""The hidden state of a run's backbone on a few images, as small maps."""
from pathlib import Path
from typing import Any, Dict, List, Optional

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from mmrla.paper.figures import Step, hidden_state_unread, run_along_depth

from .pictures import data_uri, thumbnail

COLUMNS = 12
SIDE = 72


def map_of(features: Tensor) -> str:
    """(1, C, H, W) to a small picture: the mean absolute value, scaled to its largest."""
    values = features[0].abs().mean(0)
    values = (255 * values / values.max().clamp(min=1e-12)).byte().cpu().numpy()
    factor = min(1.0, SIDE / max(values.shape))
    if factor < 1:
        values = cv2.resize(values, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    return data_uri(cv2.applyColorMap(values, cv2.COLORMAP_MAGMA), '.png')


def chosen(count: int) -> List[int]:
    """A dozen blocks, evenly along the depth."""
    return sorted(set(np.linspace(0, count - 1, min(count, COLUMNS)).round().astype(int).tolist()))


def look_inside(predictor: Any, path: Path) -> Optional[Dict[str, Any]]:
    """The maps of one image; None for a backbone without a hidden state.

    Args:
        predictor: A :class:`mmrla.Predictor`.
        path: Of the image.
    """
    backbone = predictor.model.backbone
    inputs = _inputs(predictor, path)
    try:
        steps = run_along_depth(backbone, inputs)
    except ValueError:  # no block of mmrla in it
        return None
    if all(step.hidden is None for step in steps):
        return None
    with hidden_state_unread(backbone):
        unread = run_along_depth(backbone, inputs)
    blocks = chosen(len(steps))
    return dict(name=path.name, image=thumbnail(path), blocks=[block + 1 for block in blocks],
                rows=[_row('output, h not read', [unread[block].out for block in blocks]),
                      _row('output', [steps[block].out for block in blocks]),
                      _row('hidden state h', [steps[block].hidden for block in blocks])],
                shares=[_share(steps[block]) for block in blocks])


@torch.no_grad()
def _inputs(predictor: Any, path: Path) -> Tensor:
    """An image as the detector's backbone gets it, (1, 3, H, W)."""
    _, data = predictor.inferencer.collate_fn([(path, predictor.inferencer.pipeline(str(path)))])
    model: nn.Module = predictor.model
    return model.data_preprocessor(data, False)['inputs']


def _row(name: str, maps: List[Optional[Tensor]]) -> Dict[str, Any]:
    return dict(name=name, maps=[None if item is None else map_of(item) for item in maps])


def _share(step: Step) -> List[Optional[float]]:
    """The share of the weights that read h, and what an even share would be."""
    return [None if value is None else round(float(value), 4)
            for value in (step.share, step.even_share)]
