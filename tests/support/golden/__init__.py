"""Outputs of the authors' code for weights that are generated from their names.

The ``*_released`` cases are outputs of the published code. The other cases are outputs
without its in-place operations, which is the update that the paper describes.
"""
import json
import zlib
from pathlib import Path
from typing import Dict

import numpy as np
import torch

FOLDER = Path(__file__).parent


def entry(name: str, shape: list) -> torch.Tensor:
    """Generate the value of a state-dict entry from its name and shape."""
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
    return torch.as_tensor(np.asarray(values, np.float32))


def weights(case: str) -> Dict[str, torch.Tensor]:
    """Return the weights of a case with the authors' state-dict keys."""
    manifest = json.loads((FOLDER / 'manifest.json').read_text())
    return {name: entry(name, shape) for name, shape in manifest[case].items()}


def image() -> torch.Tensor:
    """Return the input of all cases, (1, 3, 64, 64)."""
    values = np.random.default_rng(0).standard_normal((1, 3, 64, 64))
    return torch.as_tensor(values.astype(np.float32))


def figures(case: str) -> Dict[str, np.ndarray]:
    """Return the outputs of the authors' code: ``stage1`` to ``stage4`` and ``logits``."""
    return dict(np.load(FOLDER / f'{case}.npz'))
