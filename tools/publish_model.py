"""Make a checkpoint ready to share: `python tools/publish_model.py IN OUT`.

Keeps the weights alone, without optimizer, schedulers and logs, and puts the
first 8 digits of the file's sha256 behind its name, as mmdet's tool does.
OUT ends in .pth or .safetensors.
"""
import argparse
import hashlib
import os
from pathlib import Path

import torch
from mmengine.runner import CheckpointLoader

import mmrla  # noqa: F401  (reads checkpoints safely)
from mmrla.pretrained import weights_of


def write(state: dict, path: Path) -> None:
    """Write the weights in the format that the name asks for."""
    state = {name: value.contiguous() for name, value in state.items()}
    if path.suffix == '.safetensors':
        from safetensors.torch import save_file

        # A shared tensor has several names; safetensors wants each to be its own.
        save_file({name: value.clone() for name, value in state.items()}, path)
    else:
        torch.save(dict(state_dict=state), path)


def publish(source: str, target: Path) -> Path:
    """Write the weights of ``source``; the file appears whole or not at all.

    Returns:
        Path: The file, named by its content.
    """
    state = weights_of(CheckpointLoader.load_checkpoint(source, 'cpu'))
    if not state:
        raise SystemExit(f'{source} holds no weights')
    partial = target.with_name(f'.{target.stem}-partial{target.suffix}')
    write(state, partial)
    digest = hashlib.sha256(partial.read_bytes()).hexdigest()[:8]
    final = target.with_name(f'{target.stem}-{digest}{target.suffix}')
    os.replace(partial, final)
    return final


def main() -> None:
    parser = argparse.ArgumentParser(description='Make a checkpoint ready to share.')
    parser.add_argument('source', help='a checkpoint of a training')
    parser.add_argument('target', type=Path, help='where it goes: .pth or .safetensors')
    args = parser.parse_args()
    if args.target.suffix not in ('.pth', '.safetensors'):
        parser.error(f'{args.target} must end in .pth or .safetensors')
    print(publish(args.source, args.target))


if __name__ == '__main__':
    main()
