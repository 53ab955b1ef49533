"""The losses of a run."""
from pathlib import Path
from typing import Dict, Tuple

from mmrla.evaluation.scalars import read_scalars


def losses(work_dir: Path) -> Dict[Tuple[int, int], float]:
    """Return the losses of a run by (epoch, iteration)."""
    return {(scalars['epoch'], scalars['iter']): scalars['loss']
            for scalars in read_scalars(work_dir) if 'loss' in scalars}
