"""Read checkpoint files: weights only, never code, one clear line for a bad file.

The weights of a checkpoint remember the name of their file, so that later checks
can name it.
"""
import contextlib
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
from torch import Tensor

from mmrla import stack

from .errors import CheckpointError


class Metadata(dict):
    """The ``_metadata`` of a state dict, with the name of the file it came from.

    mmengine passes this object on while it loads. When it is saved again, it is the
    ``OrderedDict`` that torch expects, without the file name.
    """
    source = 'in memory'

    def __reduce__(self) -> tuple:
        return OrderedDict, (), None, None, iter(self.items())


def metadata_of(state: Dict[str, Tensor]) -> Dict[str, Any]:
    """The metadata of the modules in a state dict, by module name."""
    return getattr(state, '_metadata', {})


def source_of(state: Dict[str, Tensor]) -> str:
    """The file that a state dict was read from."""
    return getattr(metadata_of(state), 'source', Metadata.source)


def weights_key(checkpoint: Dict[str, Any]) -> Optional[str]:
    """The key of the state dict in a checkpoint; None if the checkpoint is one itself."""
    if 'state_dict' in checkpoint:
        return 'state_dict'
    return 'model' if isinstance(checkpoint.get('model'), dict) else None


def read_checkpoint(source: Union[Path, bytes], name: str, map_location: Any = None) -> Any:
    """Read a checkpoint file, or its content.

    Args:
        source: A local file, or the bytes of one.
        name: The name that messages use.
        map_location: As in :func:`torch.load`. ``'meta'`` skips the checksums, because no
            values are read.
    """
    _check_digest(source, name)
    if map_location == 'meta':
        _check_archive(source, name)
    else:
        check_sums(source, name)
    with _naming_file(name):
        if _is_safetensors(source):
            return _parse_safetensors(source, map_location)
        if isinstance(source, bytes):
            source = io.BytesIO(source)
        stack.allow_mmengine_checkpoints()  # onedl-mmengine takes types off the list
        return torch.load(source, map_location=map_location, weights_only=True)


def read_local(filename: str, map_location: Any = None) -> Any:
    """Read a checkpoint from a path; see :func:`read_checkpoint`."""
    path = Path(filename).expanduser()
    if not path.is_file():
        reason = 'is not a file' if path.exists() else 'does not exist'
        raise CheckpointError(f'checkpoint {filename} {reason}')
    return read_checkpoint(path, filename, map_location)


def with_source(checkpoint: Any, filename: str) -> Dict[str, Any]:
    """Check that a file holds a dict of weights, and note the file's name in them."""
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
    for entry, value in state.items():
        _check_extent(entry, value, filename)
    if key is not None and not isinstance(checkpoint.get('meta', {}), dict):
        raise CheckpointError(f'checkpoint {filename} is damaged: its meta is a '
                              f'{type(checkpoint["meta"]).__name__}, not a dict')
    state._metadata = metadata
    return state if key is None else {**checkpoint, key: state}


def _check_extent(entry: str, value: Any, filename: str) -> None:
    """Refuse a tensor with more values than the file contains, which any use would make.

    Strides of 0 repeat one value without an end.
    """
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    if is_dense and not value.is_quantized and (
            value.numel() * value.element_size() > value.untyped_storage().nbytes()):
        raise CheckpointError(f'checkpoint {filename} is refused: {entry} has {value.numel():,} '
                              'values, which the file does not contain')


def check_sums(source: Union[Path, bytes], name: str) -> None:
    """Compare every byte of a checkpoint with the checksums that the file contains.

    ``torch.load`` does not compare them and misses a flipped bit.
    """
    _check_archive(source, name, zipfile.ZipFile.testzip)


def _check_archive(source: Union[Path, bytes], name: str,
                   find_damaged: Callable[[zipfile.ZipFile], Optional[str]] = lambda archive: None
                   ) -> None:
    """Check the directory of a zip file, then its entries.

    ``torch.save`` never compresses. A small file could be inflated to any size.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    source = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        if not zipfile.is_zipfile(source):  # torch < 1.6 and safetensors have no checksums
            return
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if not is_stored or sum(entry.file_size for entry in entries) > size:
                raise CheckpointError(f'checkpoint {name} is refused: it is a compressed archive, '
                                      'which torch.save does not write')
            damaged = find_damaged(archive)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive directory
        raise CheckpointError(f'checkpoint {name} cannot be read ({error})') from error
    if damaged is not None:
        raise CheckpointError(f'checkpoint {name} is damaged: its checksums do not match its '
                              f'content ({damaged}). Download or copy it again')


def _check_digest(source: Union[Path, bytes], name: str) -> None:
    """Compare a file with the sha256 in its name, as in ``resnet50-0676ba61.pth``."""
    file_name = Path(urlparse(name).path).name.removesuffix('.tar')
    digits = re.fullmatch(r'.*-([0-9a-f]{64}|[0-9a-f]{8})\.\w+', file_name)
    if digits is None or digits[1].isdigit():  # digits only: a date
        return
    found = sha256_of(source)
    if not found.startswith(digits[1]):
        raise CheckpointError(
            f'checkpoint {name} is damaged or was changed: its sha256 begins with {found[:8]}, '
            f'its name says {digits[1]}. Download it again. If you know that the file is right '
            f'(mmengine\'s published_keys writes other digits), remove -{digits[1]} from its name')


def sha256_of(source: Union[Path, bytes]) -> str:
    """The sha256 of a file, or of bytes, as 64 hexadecimal digits."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


@contextlib.contextmanager
def _naming_file(name: str) -> Iterator[None]:
    """Turn an error of reading into a :class:`CheckpointError` that names the file."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(name, str(error))) from None
    except (CheckpointError, torch.OutOfMemoryError):
        raise  # already named, or not the fault of the file
    except MemoryError as error:
        raise CheckpointError(_too_large(name)) from error
    except Exception as error:  # damaged files raise nearly anything
        if "can't allocate memory" in str(error):
            raise CheckpointError(_too_large(name)) from error
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        damaged = '' if 'CUDA' in reason else (
            '; the file may be damaged, truncated or not a checkpoint')
        raise CheckpointError(f'checkpoint {name} cannot be read ({reason}){damaged}') from error


def _too_large(name: str) -> str:
    return (f'checkpoint {name} cannot be read: it announces more values than there is memory for. '
            'The file is damaged, or this machine is too small for it')


def _refusal(name: str, torch_message: str) -> str:
    """One line for torch's refusal, without torch's advice to run the code."""
    reason = next((line.strip() for line in torch_message.splitlines()
                   if re.search('GLOBAL|reduce|class|build', line)), None)
    if reason is None:
        return f'checkpoint {name} cannot be read: torch.save did not write this file'
    return (f'checkpoint {name} is refused: it holds more than weights, and reading it could run '
            f'code ({reason.split(" was not")[0]}). If you trust its author, save its state_dict '
            'alone and use that file')


def _is_safetensors(source: Union[Path, bytes]) -> bool:
    """Whether the content begins like safetensors, whatever the file's name is."""
    if not isinstance(source, bytes):
        with source.open('rb') as file:
            source = file.read(9)
    return source[8:9] == b'{'


def _parse_safetensors(source: Union[Path, bytes], map_location: Any) -> Dict[str, Any]:
    """A checkpoint from safetensors, with the metadata that mmrla saved beside the weights."""
    from safetensors.torch import load
    data = source if isinstance(source, bytes) else source.read_bytes()
    state = OrderedDict(load(data))
    if isinstance(map_location, (str, torch.device)):
        state = OrderedDict((key, value.to(map_location)) for key, value in state.items())
    # safetensors has checked this header above: its metadata are strings
    header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
    saved = json.loads(header.get('__metadata__', {}).get('mmrla', '{}'))
    modules, meta = saved.get('modules', {}), saved.get('meta', {})
    if not isinstance(meta, dict) or not isinstance(modules, dict) or not all(
            isinstance(module, dict) for module in modules.values()):
        raise TypeError('its metadata are not those that mmrla writes')
    state._metadata = modules
    return dict(state_dict=state, meta=meta)
