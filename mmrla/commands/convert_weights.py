r"""Turn weights of any layout into a checkpoint to share, or into the authors' own.

    python tools/convert_weights.py resnet50_rla_2283.pth.tar rla_v3_r50.pth
    python tools/convert_weights.py work_dirs/x/epoch_12.pth detector.safetensors
    python tools/convert_weights.py rla_v3_r50-0123abcd.pth theirs.pth --layout authors

Keeps the weights and the names of the classes, without optimizer, schedulers and
logs, and puts the first 8 digits of the file's sha256 behind its name, as mmdet's
tools do; a file so named is checked whenever it is read. TARGET ends in .pth or
.safetensors. Nothing is executed of a file that is read.
"""
import argparse
import hashlib
import json
import os
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict

import torch
from torch import Tensor

import mmrla  # noqa: F401  (reads checkpoints safely)
from mmrla.weights import load_checkpoint
from mmrla.weights.layouts import Weights, to_authors, to_ours, weights_of

from .common import clear_errors

SUFFIXES = ('.pth', '.safetensors')


# Of a training's records: what a detector is asked for when it is used.
KEPT = ('dataset_meta', 'CLASSES', 'PALETTE')


def entries_of(weights: Weights, layout: str) -> Dict[str, Tensor]:
    """The weights under the names of a layout, with what they say of their update."""
    state = OrderedDict(to_authors(weights) if layout == 'authors' else weights.entries)
    state = OrderedDict((name, value.contiguous()) for name, value in state.items())
    state._metadata = {'backbone.rla': dict(rla=weights.update)} if weights.update else {}
    return state


def write(state: Dict[str, Tensor], meta: Dict[str, Any], path: Path) -> None:
    """Write the weights in the format that the name asks for."""
    if path.suffix == '.safetensors':
        from safetensors.torch import save_file

        # A shared tensor has several names; safetensors wants each to be its own.
        save_file({name: value.clone() for name, value in state.items()}, path,
                  metadata=dict(mmrla=json.dumps(dict(modules=state._metadata, meta=meta))))
    else:
        torch.save(dict(state_dict=state, meta=meta), path)


def publish(state: Dict[str, Tensor], meta: Dict[str, Any], target: Path) -> Path:
    """Write the weights; the file appears whole or not at all.

    Args:
        state: The weights.
        meta: What a user of a detector needs beside them.
        target: Where they go.

    Returns:
        Path: The file, named by its content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:  # of the same disk: it is renamed
        partial = Path(folder) / target.name
        write(state, meta, partial)
        digest = hashlib.sha256(partial.read_bytes()).hexdigest()[:8]
        final = target.with_name(f'{target.stem}-{digest}{target.suffix}')
        os.replace(partial, final)
    return final


def main() -> None:
    parser = argparse.ArgumentParser(description='Turn weights of any layout into a file to share.')
    parser.add_argument('source', help='a path, a URL or torchvision://resnet50')
    parser.add_argument('target', type=Path, help=f'where it goes: {" or ".join(SUFFIXES)}')
    parser.add_argument(
        '--layout', choices=('mmrla', 'authors'), default='mmrla',
        help='the names of the entries: mmrla\'s, which are mmdet\'s, or those of the authors\' '
        'program')
    args = parser.parse_args()
    if args.target.suffix not in SUFFIXES:
        parser.error(f'{args.target} must end in {" or ".join(SUFFIXES)}')
    with clear_errors():
        checkpoint = load_checkpoint(args.source)
        weights = to_ours(weights_of(checkpoint))
        state = entries_of(weights, args.layout)
        meta = {key: value for key, value in checkpoint.get('meta', {}).items() if key in KEPT}
        final = publish(state, meta, args.target)
    update = ', '.join(f'{key}={value!r}' for key, value in weights.update.items())
    print(f'{args.source}: {len(weights.names)} entries in {weights.layout.title}'
          f'{f", rla=dict({update})" if update else ""}; {len(state)} written to')
    print(final)


if __name__ == '__main__':
    main()
