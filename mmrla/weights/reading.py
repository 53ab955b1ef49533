"""Reading checkpoint files: weights alone, never code, and one clear line for a bad file.

Every name that mmengine knows ends here, whoever loads it: a path, http(s),
``torchvision://``, ``open-mmlab://``, object storage. A checkpoint's weights
carry the name of their file along, so that whatever is found wrong with them
later can be said of the file.
"""
import contextlib
import functools
import hashlib
import io
import json
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Union
from urllib.parse import urlparse

import torch
from mmengine.fileio import get_file_backend
from torch import Tensor


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message names the file and the reason."""


class Metadata(dict):
    """A state dict's ``_metadata``, which also knows the file it is from.

    mmengine hands this very object on while it loads. Saved again it is what
    torch has there, without the name of a file on one machine.
    """
    source = 'in memory'

    def __reduce__(self) -> tuple:
        return OrderedDict, (), None, None, iter(self.items())


def source_of(state: Dict[str, Tensor]) -> str:
    """The file that weights were read from."""
    return getattr(metadata_of(state), 'source', Metadata.source)


def metadata_of(state: Dict[str, Tensor]) -> Dict[str, Any]:
    """What a state dict says of its modules, by their names."""
    return getattr(state, '_metadata', {})


def load_from_local(filename: str, map_location: Any = None) -> Any:
    """Read a checkpoint from a path.

    The name ends up in mmengine's log ("Loads checkpoint by local backend").

    Args:
        filename: Path of the file.
        map_location: As in :func:`torch.load`.
    """
    path = Path(filename).expanduser()
    if not path.is_file():
        reason = 'is not a file' if path.exists() else 'does not exist'
        raise CheckpointError(f'checkpoint {filename} {reason}')
    return _read(path, filename, map_location)


def check_sums(source: Union[Path, bytes], name: str) -> None:
    """Compare every byte of a checkpoint with the checksums in it.

    torch.load does not: a flipped bit would go unnoticed.
    """
    source = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        if not zipfile.is_zipfile(source):  # of torch < 1.6, or safetensors: they have none
            return
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()
    except Exception as error:  # a damaged directory of the archive
        raise CheckpointError(f'checkpoint {name} cannot be read ({error})') from error
    if damaged is not None:
        raise CheckpointError(f'checkpoint {name} is damaged: its checksums do not fit its '
                              f'content ({damaged}). Get it again')


def load_from_ceph(filename: str, map_location: Any = None) -> Any:
    """Read a checkpoint from the object storage that mmengine is set up for.

    Args:
        filename: A name such as ``s3://bucket/file.pth``.
        map_location: As in :func:`torch.load`.
    """
    try:
        backend = get_file_backend(filename, backend_args=dict(backend='petrel'))
        content = backend.get(filename)
    except OSError as error:
        raise CheckpointError(f'checkpoint {filename} cannot be had: {error}') from error
    return _read(content, filename, map_location)


def load_url(url: str, model_dir: Optional[str] = None, map_location: Any = None,
             progress: bool = True) -> Any:
    """Read a checkpoint from http(s), downloaded once into torch's cache.

    Args:
        url: Where it is.
        model_dir: Another folder than torch's cache.
        map_location: As in :func:`torch.load`.
        progress: Whether to show how far the download is.
    """
    folder = Path(model_dir or Path(torch.hub.get_dir()) / 'checkpoints')
    cached = folder / Path(urlparse(url).path).name
    is_new = not cached.exists()
    if is_new:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(cached), progress=progress)
        except OSError as error:  # urllib's errors are OSErrors
            raise CheckpointError(
                f'checkpoint {url} cannot be downloaded ({getattr(error, "reason", error)}). '
                f'Without a network, put the file at {cached}, or name another with '
                '--pretrained') from error
    try:
        return _read(cached, url, map_location)
    except CheckpointError as error:
        if is_new:
            cached.unlink()  # the next try downloads it again
            raise
        raise CheckpointError(f'{error} (downloaded before, to {cached})') from error


def _read(source: Union[Path, bytes], name: str, map_location: Any) -> Any:
    """Turn a file, or its content, into a checkpoint."""
    _check_digest(source, name)
    if map_location != 'meta':  # without values there is nothing to compare
        check_sums(source, name)
    with _naming(name):
        if _is_safetensors(source):
            return _parse_safetensors(source, map_location)
        if isinstance(source, bytes):
            source = io.BytesIO(source)
        return torch.load(source, map_location=map_location, weights_only=True)


def _check_digest(source: Union[Path, bytes], name: str) -> None:
    """Compare a file with the sha256 in its name, as in ``resnet50-0676ba61.pth``."""
    file_name = Path(urlparse(name).path).name.removesuffix('.tar')
    digits = re.fullmatch(r'.*-([0-9a-f]{64}|[0-9a-f]{8})\.\w+', file_name)
    if digits is None or digits[1].isdigit():  # only digits: a date
        return
    with io.BytesIO(source) if isinstance(source, bytes) else source.open('rb') as file:
        found = hashlib.file_digest(file, 'sha256').hexdigest()
    if not found.startswith(digits[1]):
        raise CheckpointError(
            f'checkpoint {name} is damaged or was changed: its sha256 begins with {found[:8]}, '
            f'its name says {digits[1]}. Get it again; if you know that it is right, as a file '
            f'of mmengine\'s published_keys may be, give it a name without -{digits[1]}')


def parse_bytes(content: bytes, name: str, map_location: Any = None) -> Any:
    """Read a checkpoint that is in memory; ``name`` is for the messages."""
    return _read(content, name, map_location)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of which file an error is while it is being read."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(name, str(error))) from None
    except (CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise  # named already, or the file is not to blame
    except Exception as error:  # damaged files raise nearly anything
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        damaged = '' if 'CUDA' in reason else (
            '; it may be damaged, cut short or no checkpoint at all')
        raise CheckpointError(f'checkpoint {name} cannot be read ({reason}){damaged}') from error


def _refusal(name: str, torch_message: str) -> str:
    """torch's advice is to run the code; ours is not to."""
    reason = next((line.strip() for line in torch_message.splitlines()
                   if re.search('GLOBAL|reduce|class|build', line)), None)
    if reason is None:
        return f'checkpoint {name} cannot be read: it is no file that torch.save wrote'
    return (f'checkpoint {name} is refused: it holds more than weights, and '
            f'reading that could run code ({reason.split(" was not")[0]}). If you '
            'trust whoever made it, save its state_dict alone and use that.')


def _is_safetensors(source: Union[Path, bytes]) -> bool:
    """Whether the content begins as safetensors do, whatever it is called."""
    if not isinstance(source, bytes):
        with source.open('rb') as file:
            source = file.read(9)
    return source[8:9] == b'{'


def _parse_safetensors(source: Union[Path, bytes], map_location: Any) -> Dict[str, Any]:
    """A checkpoint of a safetensors file, with what mmrla wrote beside the weights."""
    from safetensors.torch import load
    data = source if isinstance(source, bytes) else source.read_bytes()
    state = OrderedDict(load(data))
    if isinstance(map_location, (str, torch.device)):
        state = OrderedDict((key, value.to(map_location)) for key, value in state.items())
    header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
    beside = json.loads(header.get('__metadata__', {}).get('mmrla', '{}'))
    state._metadata = beside.get('modules', {})
    return dict(state_dict=state, meta=beside.get('meta', {}))


def weights_only(loader: Callable) -> Callable:
    """A loader of mmengine's own whose ``torch.load`` cannot be told to run code."""

    @functools.wraps(loader)
    def load(filename: str, map_location: Any = None) -> Any:
        original = torch.load
        torch.load = lambda *args, **kwargs: original(*args, **{**kwargs, 'weights_only': True})
        try:
            with _naming(filename):
                return loader(filename, map_location=map_location)
        finally:
            torch.load = original

    return load


def with_source(load_checkpoint: Callable, filename: str, *args, **kwargs) -> Dict[str, Any]:
    """mmengine's ``load_checkpoint``, whose weights know which file they are from."""
    try:
        checkpoint = load_checkpoint(filename, *args, **kwargs)
    except KeyError as error:  # torchvision://resnet5O
        raise CheckpointError(
            f'checkpoint {filename} is not known: there is no model {error}') from None
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f'checkpoint {filename} holds a {type(checkpoint).__name__}, '
                              'not a dict of weights')
    key = weights_key(checkpoint)
    state = checkpoint if key is None else checkpoint[key]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(f'checkpoint {filename} holds no weights: its entries have no names')
    metadata = Metadata(metadata_of(state))
    metadata.source = filename
    state = OrderedDict(state)
    state._metadata = metadata
    return state if key is None else {**checkpoint, key: state}


def weights_key(checkpoint: Dict[str, Any]) -> Optional[str]:
    """Under which key a checkpoint has its weights; None if it is them itself."""
    if 'state_dict' in checkpoint:
        return 'state_dict'
    return 'model' if isinstance(checkpoint.get('model'), dict) else None


def as_checkpoint(load: Callable, *args, **kwargs) -> Dict[str, Any]:
    """What a Runner loads, with its weights where a Runner's hooks look for them."""
    checkpoint = load(*args, **kwargs)
    key = weights_key(checkpoint)
    if key == 'state_dict':
        return checkpoint
    return dict(state_dict=checkpoint) if key is None else dict(
        checkpoint, state_dict=checkpoint[key])
