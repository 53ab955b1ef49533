"""Which checkpoint a run goes on from: the newest that can be read, of this run.

The file ``last_checkpoint`` is for people and other tools; it is only asked
where the checkpoints are when the work dir itself has none. So a work dir that
was moved or copied resumes from its own files.
"""
import json
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.runner import Runner

from mmrla.weights.reading import CheckpointError, load_from_local
from mmrla.weights.writing import verify, write_file

POINTER = 'last_checkpoint'
# Which run a work dir's newest checkpoints belong to: an older run's epoch_12.pth
# is not what a new run goes on from.
RUN_FILE = 'run.json'
# What SafeCheckpointHook adds to a checkpoint.
CONTINUATION = 'continuation'


class Candidate(NamedTuple):
    """A checkpoint that a run may go on from.

    Attributes:
        path: Its file.
        iteration: How many iterations it has seen.
        epoch: How many epochs.
        run: Which run saved it; None if mmengine's own hook did.
    """
    path: Path
    iteration: int
    epoch: int
    run: Optional[str]


def load_or_resume(original: Callable, runner: Runner) -> None:
    """``Runner.load_or_resume``, from the newest checkpoint that can be read.

    ``resume='auto'`` in a config is ``resume=True``, but starts from
    ``load_from`` if there is nothing to resume; ``resume='restart'`` resumes
    from ``load_from`` then.
    """
    mode = runner._resume
    search = mode in ('auto', 'restart') or (mode and runner._load_from is None)
    if runner._has_loaded or not search:
        if runner._resume:
            check_resumable(runner._load_from)
        return original(runner)
    found = [find_newest(runner.work_dir, runner.logger.info) if is_main_process() else None]
    broadcast_object_list(found)  # every process goes on from the same file
    runner._resume = found[0] is not None or (
        mode == 'restart' and runner._load_from is not None)
    runner._load_from = found[0] or runner._load_from
    original(runner)


def check_resumable(name: str) -> None:
    """Stop on weights alone, before a model has taken them.

    Args:
        name: Of a checkpoint that a user asks to go on from.
    """
    if '://' in name:
        return
    if _describe(Path(name), load_from_local(name, map_location='meta')) is None:
        raise CheckpointError(f'checkpoint {name} holds weights alone, nothing to go on from; '
                              'start a run from it with load_from, or --pretrained')


def find_newest(work_dir: str, say: Callable[[str], None]) -> Optional[str]:
    """The newest checkpoint of a work dir that can be read.

    Args:
        work_dir: The work dir.
        say: Called with a line for whatever the user should know.

    Returns:
        str, optional: Its path; None if there is none.
    """
    folder = Path(work_dir)
    remote = _remote_pointer(folder)
    if remote is not None:
        return remote
    candidates = _candidates(_checkpoint_folder(folder), say)
    run = read_run(folder)
    ours = [candidate for candidate in candidates if run is None or candidate.run == run]
    for candidate in sorted(ours, key=lambda candidate: candidate[1:3], reverse=True):
        try:
            verify(candidate.path)
        except CheckpointError as error:
            say(f'skipped: {error}')
            continue
        say(f'resumes from {candidate.path}')
        return str(candidate.path)
    others = [candidate for candidate in candidates if candidate not in ours]
    if others:
        say(f'{len(others)} checkpoint(s) in {work_dir} are of an earlier run, such as '
            f'{others[-1].path.name}; to go on from one, name it: --resume {others[-1].path}')
    say(f'no checkpoint to resume from in {work_dir}: starts from the beginning')
    return None


def _remote_pointer(folder: Path) -> Optional[str]:
    """What the pointer names, if that is no local file (object storage)."""
    name = _read_pointer(folder)
    if name and '://' in name and not isinstance(get_file_backend(name), LocalBackend):
        return name
    return None


def _checkpoint_folder(folder: Path) -> Path:
    """Where the checkpoints are: the work dir, or the hook's ``out_dir``."""
    name = _read_pointer(folder)
    if name and not any(_checkpoint_files(folder)) and Path(name).parent.is_dir():
        return Path(name).parent
    return folder


def _read_pointer(folder: Path) -> Optional[str]:
    try:
        return (folder / POINTER).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _checkpoint_files(folder: Path) -> List[Path]:
    """The checkpoints of a folder that a run could go on from."""
    return sorted(path for path in folder.glob('*.pth')
                  if path.is_file() and not path.name.startswith(('best_', '.')))


def _candidates(folder: Path, say: Callable[[str], None]) -> List[Candidate]:
    """The checkpoints of a folder that look whole; their tensors are not read yet."""
    found = []
    for path in _checkpoint_files(folder):
        try:
            checkpoint = load_from_local(str(path), map_location='meta')
            candidate = _describe(path, checkpoint)
        except CheckpointError as error:
            say(f'skipped: {error}')
            continue
        if candidate is not None:
            found.append(candidate)
    return found


def _describe(path: Path, checkpoint: Any) -> Optional[Candidate]:
    """What to know of a checkpoint; None for weights alone."""
    if not isinstance(checkpoint, dict) or 'message_hub' not in checkpoint:
        return None
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or not all(
            isinstance(meta.get(key), int) for key in ('epoch', 'iter')):
        raise CheckpointError(f'checkpoint {path} does not say which iteration it is of')
    continuation = checkpoint.get(CONTINUATION) or {}
    return Candidate(path, meta['iter'], meta['epoch'], continuation.get('run'))


def read_run(folder: Path) -> Optional[str]:
    """The run that a work dir belongs to; None if it does not say."""
    try:
        content = json.loads((folder / RUN_FILE).read_text())
        return str(content['run'])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def claim(folder: Path, run: Optional[str]) -> str:
    """Let a work dir belong to a run, a new one by default."""
    run = run or uuid.uuid4().hex
    if read_run(folder) != run:
        content: Dict[str, str] = dict(run=run)
        write_file(folder / RUN_FILE, lambda file: file.write(json.dumps(content).encode()))
    return run
