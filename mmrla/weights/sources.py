"""Where checkpoints come from: paths, URLs, names of models, Google Drive, object storage.

:func:`load_checkpoint` reads any name that mmengine or mmrla knows, as weights only. Through
:func:`read_safely` mmengine's own loading functions use the same readers.
"""
import difflib
import re
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Optional
from urllib.parse import urlparse

import torch
from mmengine.dist import broadcast_object_list, get_dist_info
from mmengine.fileio import get_file_backend
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint

from .authors import AUTHORS_FILES
from .digests import check_remembered
from .download import download
from .drive import LINK, PAGE, download_from_drive, id_in_link, is_drive_id
from .errors import CheckpointError
from .reading import read_checkpoint, read_local, with_source


def load_from_local(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a checkpoint from a path."""
    return with_source(read_local(filename, map_location), filename)


def load_from_safetensors(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read weights from a ``.safetensors`` file, which mmengine alone cannot read."""
    return load_from_local(filename, map_location)


def load_from_http(filename: str, map_location: Any = None, model_dir: Optional[str] = None,
                   progress: Optional[bool] = None) -> Dict[str, Any]:
    """Read a checkpoint from http(s), downloaded once into torch's cache.

    Args:
        filename: The URL.
        map_location: As in :func:`torch.load`.
        model_dir: Another folder than torch's cache.
        progress: Whether to show a progress bar. By default on a terminal.
    """
    folder = Path(model_dir or cache_folder())
    cached = folder / Path(urlparse(filename).path).name
    is_new = once_per_run(lambda: fetch(filename, cached, progress))
    return read_cached(cached, filename, map_location, is_new)


def cache_folder() -> Path:
    """The folder for downloaded checkpoints, which torch uses too."""
    return Path(torch.hub.get_dir()) / 'checkpoints'


def once_per_run(action: Callable[[], Any]) -> Any:
    """Run an action on rank 0, then on the other ranks; an error of rank 0 stops all.

    Without the exchange the other ranks would wait for rank 0 until a time-out.
    """
    rank, world_size = get_dist_info()
    if world_size == 1:
        return action()
    outcome = [None]
    if rank == 0:
        try:
            result = action()
        except CheckpointError as error:
            outcome = [str(error)]
    broadcast_object_list(outcome)
    if outcome[0] is not None:
        raise CheckpointError(outcome[0])
    return result if rank == 0 else action()


def fetch(url: str, cached: Path, progress: Optional[bool] = None) -> bool:
    """Download a URL unless it is in the cache; whether it was downloaded."""
    if cached.is_file():
        return False
    try:
        download(url, cached, progress)
    except OSError as error:  # urllib's errors are OSErrors
        raise CheckpointError(
            f'checkpoint {url} cannot be downloaded ({getattr(error, "reason", error)}). '
            f'Without a network, put the file at {cached}, or name another file with '
            '--pretrained') from error
    return True


def read_cached(cached: Path, name: str, map_location: Any, is_new: bool) -> Dict[str, Any]:
    """Read a downloaded file; a new one that cannot be read does not stay in the cache."""
    try:
        return with_source(read_checkpoint(cached, name, map_location), name)
    except CheckpointError as error:
        if is_new:
            cached.unlink()  # the next attempt downloads it again
            raise
        raise CheckpointError(f'{error} (downloaded before, to {cached})') from error


def load_from_torchvision(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a model of torchvision, such as ``torchvision://resnet50``."""
    urls = mmengine_checkpoint.get_torchvision_models()
    return load_from_http(_look_up(filename, urls), map_location)


def load_from_openmmlab(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a model of OpenMMLab, such as ``open-mmlab://detectron2/resnet50_caffe``."""
    renamed = mmengine_checkpoint.get_deprecated_model_names()
    name = _model_name(filename)
    location = _look_up(f'open-mmlab://{renamed.get(name, name)}',
                        mmengine_checkpoint.get_external_models(), filename)
    if location.startswith(('http://', 'https://')):
        return load_from_http(location, map_location)
    # A file beside the user's own table of models.
    path = Path(mmengine_checkpoint._get_mmengine_home()) / location
    if not path.is_file():
        raise CheckpointError(f'checkpoint {filename} does not exist: there is no file {path}')
    return with_source(read_checkpoint(path, filename, map_location), filename)


def load_from_mmcls(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read the backbone of a classifier of mmpretrain, such as ``mmcls://resnet50_v1c``."""
    return load_from_http(_look_up(filename, mmengine_checkpoint.get_mmcls_models()), map_location)


def _model_name(filename: str) -> str:
    return filename.partition('://')[2]


def _look_up(filename: str, urls: Dict[str, str], shown: Optional[str] = None) -> str:
    """The URL of a named model."""
    name = _model_name(filename)
    if name not in urls:
        raise CheckpointError(
            f'checkpoint {shown or filename} is not known: there is no model {name!r}')
    return urls[name]


def load_from_authors(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read weights that the authors published, such as ``authors://resnet50_rla_2283``."""
    name = _model_name(filename)
    if name not in AUTHORS_FILES:
        similar = difflib.get_close_matches(name, AUTHORS_FILES, n=3)
        hint = f'did you mean {" or ".join(similar)}?' if similar else (
            f'the names are {", ".join(AUTHORS_FILES)}')
        raise CheckpointError(f'checkpoint {filename} is not known: {hint}')
    file = AUTHORS_FILES[name]
    return _load_from_drive(filename, file.drive_id, cache_folder() / file.file_name, map_location)


def load_from_gdrive(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a checkpoint from Google Drive: ``gdrive://ID`` with the id of the file."""
    file_id = _model_name(filename)
    if not is_drive_id(file_id):
        raise CheckpointError(f'checkpoint {filename} has no Google Drive id: in the address '
                              f'{PAGE.format("ID")} the id is the part between /d/ and /view')
    return _load_from_drive(filename, file_id, cache_folder() / f'gdrive_{file_id}.pth',
                            map_location)


def load_from_drive_link(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a checkpoint by its Google Drive address; plain HTTP returns a web page instead."""
    file_id = id_in_link(filename)
    if file_id is None:
        raise CheckpointError(f'checkpoint {filename} is not the address of a file on Google '
                              f'Drive, such as {PAGE.format("ID")}')
    for file in AUTHORS_FILES.values():
        if file.drive_id == file_id:
            return load_from_authors(f'authors://{file.name}', map_location)
    return load_from_gdrive(f'gdrive://{file_id}', map_location)


def _load_from_drive(name: str, file_id: str, cached: Path, map_location: Any) -> Dict[str, Any]:
    """Read a file from Google Drive, downloaded once; its sha256 is logged and remembered."""
    is_new = once_per_run(lambda: fetch_from_drive(name, file_id, cached))
    checkpoint = read_cached(cached, name, map_location, is_new)
    once_per_run(lambda: check_remembered(cached, name))
    return checkpoint


def fetch_from_drive(name: str, file_id: str, cached: Path) -> bool:
    """Download a file from Google Drive unless it is in the cache; whether it was downloaded."""
    try:
        return download_from_drive(file_id, cached)
    except OSError as error:
        raise CheckpointError(
            f'checkpoint {name} cannot be downloaded ({error}). To download it by hand, open '
            f'{PAGE.format(file_id)} in a browser and save the file as {cached}') from error


def load_from_ceph(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a checkpoint from the object storage that mmengine is set up for."""
    try:
        backend = get_file_backend(filename, backend_args=dict(backend='petrel'))
        content = backend.get(filename)
    except OSError as error:
        raise CheckpointError(f'checkpoint {filename} cannot be read: {error}') from error
    return with_source(read_checkpoint(bytes(content), filename, map_location), filename)


def load_from_pavi(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Read a checkpoint from Pavi's model cloud."""
    from pavi import modelcloud
    model = modelcloud.get(_model_name(filename))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / model.name
        model.download(str(path))
        return with_source(read_checkpoint(path, filename, map_location), filename)


# Patterns of names, as CheckpointLoader matches them. The last matches everything.
LOADERS: Dict[str, Callable] = {
    'http://': load_from_http,
    'https://': load_from_http,
    'torchvision://': load_from_torchvision,
    'modelzoo://': load_from_torchvision,
    'open-mmlab://': load_from_openmmlab,
    'openmmlab://': load_from_openmmlab,
    'mmcls://': load_from_mmcls,
    'pavi://': load_from_pavi,
    r'(\S+\:)?s3://': load_from_ceph,
    r'(\S+\:)?petrel://': load_from_ceph,
    '': load_from_local,
}
# Names that mmengine does not know. Registering them changes nothing for other names.
NEW_LOADERS: Dict[str, Callable] = {
    r'[^:]*\.safetensors$': load_from_safetensors,
    'authors://': load_from_authors,
    'gdrive://': load_from_gdrive,
    LINK: load_from_drive_link,
}


def register_new_names() -> None:
    """Let mmengine's loading functions read the names in ``NEW_LOADERS``."""
    for pattern, loader in NEW_LOADERS.items():
        CheckpointLoader.register_scheme(pattern, loader, force=True)


def read_safely() -> None:
    """Let all of mmengine's loading functions in this process use mmrla's readers.

    mmengine (up to 0.10.7 at least) runs code from downloaded checkpoints, and from local
    ones if TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set. After this call every checkpoint is read
    as weights only, compared with its checksums, and named in errors, whoever loads it.
    mmrla's runner and commands call this function; ``import mmrla`` does not.
    """
    for pattern, loader in LOADERS.items():
        CheckpointLoader.register_scheme(pattern, loader, force=True)


def load_checkpoint(filename: str, map_location: Any = 'cpu') -> Dict[str, Any]:
    """Read a checkpoint by any name that mmengine or mmrla knows.

    Args:
        filename: A path, a URL, ``torchvision://resnet50``, ``authors://resnet50_rla_2283``,
            ``gdrive://ID`` or another name.
        map_location: As in :func:`torch.load`.

    Returns:
        dict: The checkpoint, or the state dict if the file holds nothing else. Its
        weights remember ``filename``.
    """
    for pattern, loader in {**NEW_LOADERS, **LOADERS}.items():
        # A name with a scheme that is not in the table: a user registered it with mmengine.
        if re.match(pattern, filename) and (pattern or '://' not in filename):
            return loader(filename, map_location)
    return with_source(CheckpointLoader.load_checkpoint(filename, map_location), filename)
