"""What the authors' code computed, for weights made from their names alone.

`*_released` is their code as published; the others have its in-place
operations taken out, which is the update the paper describes.
"""
import json
import zlib
from pathlib import Path
from typing import Dict

import numpy as np
import torch

FOLDER = Path(__file__).parent


def entry(name: str, shape: list) -> torch.Tensor:
    """The value of the entry ``name`` of a golden network's weights."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    leaf = name.rsplit('.', 1)[-1]
    if leaf == 'num_batches_tracked':
        return torch.zeros(shape, dtype=torch.int64)
    if leaf == 'running_var':
        values = rng.uniform(0.5, 1.5, shape)
    elif leaf in ('running_mean', 'bias'):
        values = 0.1 * rng.standard_normal(shape)
    elif len(shape) == 1:
        values = rng.uniform(0.5, 1.0, shape)
    else:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(values, np.float32))


def weights(case: str) -> Dict[str, torch.Tensor]:
    """The weights of a case, under the authors' names."""
    manifest = json.loads((FOLDER / 'manifest.json').read_text())
    return {name: entry(name, shape) for name, shape in manifest[case].items()}


def image() -> torch.Tensor:
    """The input of every case, of shape (1, 3, 64, 64)."""
    values = np.random.default_rng(0).standard_normal((1, 3, 64, 64))
    return torch.from_numpy(values.astype(np.float32))


def figures(case: str) -> Dict[str, np.ndarray]:
    """What the authors' code computed: `stage1` to `stage4`, `logits`."""
    return dict(np.load(FOLDER / f'{case}.npz'))
