"""The checkpoint of a run that is worth using."""
from pathlib import Path
from typing import Optional, Union

from mmrla.engine.work_dir import read_pointer
from mmrla.weights.errors import CheckpointError


def best_checkpoint(folder: Path) -> Optional[Path]:
    """The best checkpoint in a work dir by the run's own metric, else the last.

    Args:
        folder: The work dir of a training.

    Returns:
        Path | None: None if there is no checkpoint.
    """
    files = [path for path in folder.glob('*.pth') if path.is_file()]
    best = sorted((path for path in files if path.name.startswith('best_')), key=_modified)
    if best:
        return best[-1]
    pointer = read_pointer(folder)
    last = folder / Path(pointer).name if pointer else None
    return last if last in files else max(files, key=_modified, default=None)


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def find_checkpoint(name: Union[str, Path]) -> str:
    """A checkpoint by its name, or the one of a work dir."""
    if not Path(name).is_dir():
        return str(name)
    found = best_checkpoint(Path(name))
    if found is None:
        raise CheckpointError(f'folder {name} has no checkpoint (*.pth)')
    return str(found)
