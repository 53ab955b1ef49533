"""Files as the authors' programs save them, of golden weights."""
from collections import OrderedDict
from pathlib import Path
from typing import Dict, Tuple

import torch
from torch import Tensor, nn

from . import golden


def authors_file(folder: Path, case: str) -> str:
    """A classifier as the authors' training script saves it; its path."""
    path = folder / f'{case}.pth.tar'
    state = OrderedDict((f'module.{name}', value) for name, value in golden.weights(case).items())
    optimizer = dict(state={0: dict(momentum_buffer=torch.ones(2))}, param_groups=[dict(lr=0.1)])
    torch.save(dict(epoch=120, arch=case, state_dict=state, best_acc1=torch.tensor(77.2),
                    optimizer=optimizer), path)
    return str(path)


def authors_detector(folder: Path, model: nn.Module, case: str) -> Tuple[str, Dict[str, Tensor]]:
    """A detector as the authors' mmdet 2.x saves it: golden backbone, heads of a model.

    torch 1.5, which the authors used, saves no zip file.

    Returns:
        tuple: Its path, and the state dict of its heads.
    """
    backbone = {f'backbone.{name}': value for name, value in golden.weights(case).items()
                if not name.startswith(('bn2.', 'fc.'))}
    heads = {name: value + 0.5 for name, value in model.state_dict().items()
             if not name.startswith('backbone.')}
    path = folder / 'faster_rcnn_r50rla_fpn_1x_coco_388.pth'
    torch.save(dict(meta=dict(mmdet_version='2.10.0', epoch=12, CLASSES=('person',)),
                    state_dict=OrderedDict({**backbone, **heads}), optimizer=dict()), path,
               _use_new_zipfile_serialization=False)
    return str(path), heads
