"""Find the checkpoint that a run resumes from: the newest of this run that can be read.

The files in the work dir count, so a work dir that was moved or copied resumes from
its own checkpoints.
"""
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional

from mmengine.fileio import HTTPBackend, LocalBackend, get_file_backend

from mmrla.weights.errors import CheckpointError
from mmrla.weights.reading import read_local
from mmrla.weights.writing import verify_checkpoint

from .work_dir import read_pointer, read_run


class Candidate(NamedTuple):
    """A checkpoint that a run may resume from.

    Attributes:
        path: Its file.
        iteration: The number of iterations it was trained for.
        epoch: The number of epochs.
        run: The run that saved it; None if mmengine's own runner did.
    """
    path: Path
    iteration: int
    epoch: int
    run: Optional[str]


def check_resumable(name: str) -> None:
    """Raise if a local file holds weights only, before a model has taken them."""
    if '://' in name:
        return
    if _describe(Path(name), read_local(name, map_location='meta')) is None:
        raise CheckpointError(f'checkpoint {name} holds weights only, and no state of a training '
                              'run; to start a new run from it, use load_from or --pretrained')


def find_newest(work_dir: str, log: Callable[[str], None]) -> Optional[str]:
    """The newest checkpoint of a work dir that can be read.

    Args:
        work_dir: The work dir.
        log: Receives a line for everything that the user should know.

    Returns:
        str, optional: Its path; None if there is none.
    """
    folder = Path(work_dir)
    remote = _remote_pointer(folder)
    if remote is not None:
        return remote
    candidates = _candidates(_checkpoint_folder(folder), log)
    run = read_run(folder)
    ours = [candidate for candidate in candidates if run is None or candidate.run == run]
    for candidate in sorted(ours, key=lambda candidate: candidate[1:3], reverse=True):
        try:
            verify_checkpoint(candidate.path)
        except CheckpointError as error:
            log(f'skipped: {error}')
            continue
        log(f'resuming from {candidate.path}')
        return str(candidate.path)
    others = [candidate for candidate in candidates if candidate not in ours]
    if others:
        log(f'{len(others)} checkpoint(s) in {work_dir} belong to an earlier run, such as '
            f'{others[-1].path.name}; to resume from one, name it: --resume {others[-1].path}')
    log(f'no checkpoint to resume from in {work_dir}; starting from the beginning')
    return None


def _remote_pointer(folder: Path) -> Optional[str]:
    """The checkpoint that the pointer names, if it is in object storage.

    No run can write to a web server, so a pointer to one is not a run's own.
    """
    name = read_pointer(folder)
    if not name or '://' not in name:
        return None
    try:
        backend = get_file_backend(name)
    except Exception:  # a backend that is unknown, or whose package is not installed
        return None
    return None if isinstance(backend, (HTTPBackend, LocalBackend)) else name


def _checkpoint_folder(folder: Path) -> Path:
    """The folder of the checkpoints: the work dir, or the hook's ``out_dir``."""
    name = read_pointer(folder)
    if name and not any(_checkpoint_files(folder)) and Path(name).parent.is_dir():
        return Path(name).parent
    return folder


def _checkpoint_files(folder: Path) -> List[Path]:
    """The checkpoints of a folder, without the best ones."""
    return sorted(path for path in folder.glob('*.pth')
                  if path.is_file() and not path.name.startswith(('best_', '.')))


def _candidates(folder: Path, log: Callable[[str], None]) -> List[Candidate]:
    """The checkpoints of a folder that look complete; their tensors are not read yet."""
    found = []
    for path in _checkpoint_files(folder):
        try:
            candidate = _describe(path, read_local(str(path), map_location='meta'))
        except CheckpointError as error:
            log(f'skipped: {error}')
            continue
        if candidate is not None:
            found.append(candidate)
    return found


def _describe(path: Path, checkpoint: Any) -> Optional[Candidate]:
    """Which run and iteration a checkpoint is from; None for weights only."""
    if not isinstance(checkpoint, dict) or 'message_hub' not in checkpoint:
        return None
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or not all(
            isinstance(meta.get(key), int) for key in ('epoch', 'iter')):
        raise CheckpointError(f'checkpoint {path} does not contain its iteration')
    return Candidate(path, meta['iter'], meta['epoch'], meta.get('run'))
