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
from urllib.error import URLError
from urllib.parse import urlparse

import torch
from mmengine.fileio import get_file_backend
from torch import Tensor

# Where a state dict says which file it was read from, among its modules' versions.
_SOURCE = '<file>'


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message names the file and the reason."""


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
    _check_digest(path, filename)
    if map_location != 'meta':  # without values there is nothing to compare
        check_sums(path, filename)
    return _parse(path, filename, map_location)


def check_sums(path: Path, name: str) -> None:
    """Compare every byte of a checkpoint with the checksums in it.

    torch.load does not: a flipped bit would go unnoticed.
    """
    try:
        if not zipfile.is_zipfile(path):  # of torch < 1.6, or safetensors: they have none
            return
        with zipfile.ZipFile(path) as archive:
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
    backend = get_file_backend(filename, backend_args=dict(backend='petrel'))
    return _parse(backend.get(filename), filename, map_location)


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
    if not cached.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(cached), progress=progress)
        except URLError as error:
            raise CheckpointError(
                f'checkpoint {url} cannot be downloaded ({error.reason}). Without a network, '
                f'put the file at {cached}, or name another with --pretrained') from error
    try:
        _check_digest(cached, url)
    except CheckpointError:
        cached.unlink()  # the next try downloads it again
        raise
    return _parse(cached, url, map_location)


def _check_digest(path: Path, name: str) -> None:
    """Compare a file with the sha256 in its name, as in ``resnet50-0676ba61.pth``."""
    digits = re.fullmatch(r'.*-([0-9a-f]{8,64})', path.stem)
    if digits is None or digits[1].isdigit():  # only digits: a date
        return
    with path.open('rb') as file:
        found = hashlib.file_digest(file, 'sha256').hexdigest()
    if not found.startswith(digits[1]):
        raise CheckpointError(
            f'checkpoint {name} is damaged or was changed: its sha256 begins with {found[:8]}, '
            f'its name says {digits[1]}. Get it again; if you know that it is right, as a file '
            f'of mmengine\'s published_keys may be, give it a name without -{digits[1]}')


def parse_bytes(content: bytes, name: str, map_location: Any = None) -> Any:
    """Read a checkpoint that is in memory; ``name`` is for the messages."""
    return _parse(content, name, map_location)


def _parse(source: Union[Path, bytes], name: str, map_location: Any) -> Any:
    """Turn a file or its content into a checkpoint."""
    try:
        if name.endswith('.safetensors'):
            return _parse_safetensors(source, map_location)
        if isinstance(source, bytes):
            source = io.BytesIO(source)
        return torch.load(source, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(name, str(error))) from None
    except (MemoryError, torch.OutOfMemoryError):
        raise  # the file is not to blame
    except Exception as error:  # damaged files raise nearly anything
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        raise CheckpointError(f'checkpoint {name} cannot be read ({reason}); it may be '
                              'damaged, cut short or no checkpoint at all') from error


def _refusal(name: str, torch_message: str) -> str:
    """torch's advice is to run the code; ours is not to."""
    reason = next((line.strip() for line in torch_message.splitlines()
                   if re.search('GLOBAL|reduce|class|build', line)), None)
    if reason is None:
        return f'checkpoint {name} cannot be read: it is no file that torch.save wrote'
    return (f'checkpoint {name} is refused: it holds more than weights, and '
            f'reading that could run code ({reason.split(" was not")[0]}). If you '
            'trust whoever made it, save its state_dict alone and use that.')


def _parse_safetensors(source: Union[Path, bytes], map_location: Any) -> Dict[str, Tensor]:
    """The weights of a safetensors file, with what it says of its modules."""
    from safetensors.torch import load
    data = source if isinstance(source, bytes) else source.read_bytes()
    state = OrderedDict(load(data))
    if map_location is not None:
        state = OrderedDict((key, value.to(map_location)) for key, value in state.items())
    header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
    state._metadata = json.loads(header.get('__metadata__', {}).get('modules', '{}'))
    return state


def weights_only(loader: Callable) -> Callable:
    """A loader of mmengine's own whose ``torch.load`` cannot be told to run code."""

    @functools.wraps(loader)
    def load(filename: str, map_location: Any = None) -> Any:
        try:
            with _torch_load_weights_only():
                return loader(filename, map_location=map_location)
        except pickle.UnpicklingError as error:
            raise CheckpointError(_refusal(filename, str(error))) from None

    return load


@contextlib.contextmanager
def _torch_load_weights_only() -> Iterator[None]:
    original = torch.load
    torch.load = functools.partial(original, weights_only=True)
    try:
        yield
    finally:
        torch.load = original


def with_source(load_checkpoint: Callable, filename: str, *args, **kwargs) -> Any:
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
    metadata = getattr(state, '_metadata', {})
    state = OrderedDict(state)
    state._metadata = {**metadata, _SOURCE: filename}
    return state if key is None else {**checkpoint, key: state}


def weights_key(checkpoint: Dict[str, Any]) -> Optional[str]:
    """Under which key a checkpoint has its weights; None if it is them itself."""
    keys = (key for key in ('state_dict', 'model') if isinstance(checkpoint.get(key), dict))
    return next(keys, None)


def source_of(state: Dict[str, Tensor]) -> str:
    """The file that weights were read from."""
    return getattr(state, '_metadata', {}).get(_SOURCE, 'in memory')
