"""Reading the scalars that mmengine logs during a run."""
import json
from pathlib import Path
from typing import Any, Dict, List


def read_scalars(run: Path) -> List[Dict[str, Any]]:
    """Read the logged scalars of a run, oldest first.

    Every start of a run writes a log of its own,
    ``{run}/{timestamp}/vis_data/scalars.json``, with one JSON object per line. A
    process that is killed may leave an incomplete last line, which is skipped.

    Args:
        run: The work dir.

    Returns:
        list[dict]: A training entry has ``loss``, ``epoch``, ``iter`` and
        ``step``; a validation entry has its metrics and ``step``.
    """
    logs = sorted(Path(run).glob('*/vis_data/scalars.json'))
    return [scalars for log in logs for scalars in _read_log(log)]


def _read_log(path: Path) -> List[Dict[str, Any]]:
    lines = path.read_text().splitlines()
    entries = [json.loads(line) for line in lines[:-1]]
    try:
        return entries + [json.loads(line) for line in lines[-1:]]
    except json.JSONDecodeError:
        return entries
