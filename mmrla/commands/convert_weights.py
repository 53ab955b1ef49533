r"""Convert weights of any known layout to a file to share, or to the authors' layout.

    python tools/convert_weights.py resnet50_rla_2283.pth.tar rla_v3_r50.pth
    python tools/convert_weights.py work_dirs/x/epoch_12.pth detector.safetensors
    python tools/convert_weights.py rla_v3_r50.pth theirs.pth --layout authors

The file keeps the weights and the class names, without optimizer, schedulers and
logs. TARGET ends in .pth or .safetensors. With --hash-in-name the first 8 digits of
the file's sha256 are appended to its name, as mmdet's tools do; such a file is
checked against its name whenever it is read. Reading a file never runs code from it.
"""
import argparse
import hashlib
import io
import json
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import torch
from torch import Tensor

import mmrla  # noqa: F401  (reads checkpoints safely)
from mmrla.weights import load_checkpoint
from mmrla.weights.errors import SaveError
from mmrla.weights.layouts import Weights, to_authors, to_ours, weights_of
from mmrla.weights.writing import verify_checkpoint, write_file

from .errors import clear_errors

SUFFIXES = ('.pth', '.safetensors')
# The metadata that inference needs; the rest belongs to the training run.
KEPT = ('dataset_meta', 'CLASSES', 'PALETTE')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Convert weights of any known layout to a file to share.')
    parser.add_argument('source', help='a path, a URL or torchvision://resnet50')
    parser.add_argument('target', type=Path,
                        help=f'file to write, ending in {" or ".join(SUFFIXES)}')
    parser.add_argument(
        '--layout', choices=('mmrla', 'authors'), default='mmrla',
        help='state-dict keys of the file: those of mmrla, which extend mmdet\'s, or those of '
        'the authors\' code')
    parser.add_argument('--hash-in-name', action='store_true',
                        help='append the first 8 digits of the sha256 to the file name')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.target.suffix not in SUFFIXES:
        parser.error(f'{args.target} must end in {" or ".join(SUFFIXES)}')
    if re.search('-([0-9a-f]{8}|[0-9a-f]{64})$', args.target.stem):
        parser.error(f'{args.target} looks as if it ended in a sha256, which would be checked when '
                     'the file is read. Choose another name, or use --hash-in-name')
    return args


def with_layout(weights: Weights, layout: str) -> Dict[str, Tensor]:
    """Return the state dict of a layout; its metadata holds the RLA update."""
    state = OrderedDict(to_authors(weights) if layout == 'authors' else weights.entries)
    state = OrderedDict((name, value.contiguous()) for name, value in state.items())
    state._metadata = {'backbone': dict(rla=weights.update)} if weights.update else {}
    return state


def serialize(state: Dict[str, Tensor], meta: Dict[str, Any], suffix: str) -> bytes:
    """Return the content of a checkpoint file.

    Args:
        state: The weights.
        meta: Metadata, such as the class names.
        suffix: ``.pth`` or ``.safetensors``.
    """
    if suffix == '.safetensors':
        from safetensors.torch import save

        # safetensors refuses tensors that share memory.
        return save({name: value.clone() for name, value in state.items()},
                    metadata=dict(mmrla=json.dumps(dict(modules=state._metadata, meta=meta))))
    buffer = io.BytesIO()
    torch.save(dict(state_dict=state, meta=meta), buffer)
    return buffer.getvalue()


def publish(content: bytes, target: Path, hash_in_name: bool) -> Path:
    """Write a checkpoint file atomically and return its path."""
    if hash_in_name:
        digest = hashlib.sha256(content).hexdigest()[:8]
        target = target.with_name(f'{target.stem}-{digest}{target.suffix}')
    try:
        write_file(target, lambda file: file.write(content), verify=verify_checkpoint)
    except OSError as error:
        raise SaveError(f'{target} cannot be written ({error.strerror or error}); free space '
                        'there or choose another target') from error
    return target


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    with clear_errors():
        checkpoint = load_checkpoint(args.source)
        weights = to_ours(weights_of(checkpoint))
        state = with_layout(weights, args.layout)
        meta = {key: value for key, value in checkpoint.get('meta', {}).items() if key in KEPT}
        final = publish(serialize(state, meta, args.target.suffix), args.target,
                        args.hash_in_name)
    update = ', '.join(f'{key}={value!r}' for key, value in weights.update.items())
    print(f'{args.source}: {len(weights.names)} entries (layout: {weights.layout.title}'
          f'{f", rla=dict({update})" if update else ""}); {len(state)} entries written to')
    print(final)


if __name__ == '__main__':
    main()
