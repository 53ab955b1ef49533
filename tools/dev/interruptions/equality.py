"""What two runs must have in common: checkpoints and logs, to the bit."""
import json
from pathlib import Path
from typing import Any, Dict, List

import torch

from mmrla.engine.work_dir import read_pointer
from mmrla.weights.errors import CheckpointError
from mmrla.weights.writing import verify_checkpoint

# What a result counts differences of, and the entries of a checkpoint that belong to it.
PARTS = dict(weights=('state_dict',), optimizer=('optimizer',),
             averaged_weights=('ema_state_dict',), schedules=('param_schedulers',))
# Times and paths differ between any two runs.
TIMES = ('time', 'data_time', 'iter_time')


def pointer_state(work_dir: Path) -> str:
    """Return whether ``last_checkpoint`` names a readable checkpoint."""
    pointer = work_dir / 'last_checkpoint'
    if not pointer.exists():
        return 'none'
    return 'readable' if _is_readable(Path(pointer.read_text().strip())) else 'unreadable'


def unreadable_files(work_dir: Path) -> List[str]:
    """The files with the name of a checkpoint that are not complete checkpoints."""
    return [path.name for path in sorted(work_dir.glob('[!.]*.pth')) if not _is_readable(path)]


def _is_readable(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except (CheckpointError, OSError):
        return False
    return True


def differences(one: Any, other: Any, name: str = '') -> List[str]:
    """The entries of two nested values that are not equal to the bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if is_same else [name]
    if isinstance(one, dict) and isinstance(other, dict):
        return [found for key in sorted({*one, *other}, key=str) for found in (
            differences(one[key], other[key], f'{name}.{key}')
            if key in one and key in other else [f'{name}.{key}'])]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [name]
        return [found for number, (a, b) in enumerate(zip(one, other, strict=True))
                for found in differences(a, b, f'{name}.{number}')]
    return [] if type(one) is type(other) and one == other else [name]


def compare(straight: Path, killed: Path) -> Dict[str, List[str]]:
    """The differences of two finished runs.

    Args:
        straight: The work dir of the undisturbed run.
        killed: The work dir of the other run.

    Returns:
        dict: By part of a run, the names of the entries that differ.
    """
    one, other = (_load(Path(read_pointer(folder))) for folder in (straight, killed))
    found = {part: differences(_pick(one, keys), _pick(other, keys))
             for part, keys in PARTS.items()}
    found['last_step'] = differences(_position(one), _position(other))
    found['best_checkpoint'] = differences(_best(straight), _best(killed))
    found['logged_losses'] = _log_differences(straight, killed)
    return found


def _load(path: Path) -> Dict[str, Any]:
    return torch.load(path, weights_only=True)


def _pick(checkpoint: Dict[str, Any], keys: Any) -> Dict[str, Any]:
    return {key: checkpoint[key] for key in keys if key in checkpoint}


def _position(checkpoint: Dict[str, Any]) -> Dict[str, int]:
    return {key: checkpoint['meta'][key] for key in ('epoch', 'iter')}


def _best(work_dir: Path) -> Dict[str, Any]:
    """The content of the best checkpoints, by name."""
    found = {}
    for path in work_dir.glob('best_*.pth'):
        checkpoint = _load(path)
        score = checkpoint['message_hub']['runtime_info']['best_score']
        found[path.name] = dict(
            {key: value for key, value in checkpoint.items() if key not in ('meta', 'message_hub')},
            position=_position(checkpoint), score=score)
    return found


def logged(work_dir: Path) -> List[Dict[str, Any]]:
    """The lines of all logs of a run, without times. A kill can leave an incomplete line."""
    lines = []
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            lines.append({key: value for key, value in line.items() if key not in TIMES})
    return lines


def _log_differences(straight: Path, killed: Path) -> List[str]:
    """The steps whose logs differ. A step that was repeated after a kill is logged twice."""
    expected = {_key(line): line for line in logged(straight)}
    found = logged(killed)
    missing = expected.keys() - {_key(line) for line in found}
    different = {_key(line) for line in found if expected.get(_key(line)) != line}
    return sorted(map(str, missing | different))


def _key(line: Dict[str, Any]) -> tuple:
    """What a line is about: a step of training, or a validation."""
    return 'train' if 'loss' in line else 'validation', line['step']
