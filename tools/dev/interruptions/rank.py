"""One process of a run that torchrun started for chaos.py."""
import ast
import os
import sys
from pathlib import Path

from mmengine.config import Config

sys.path.insert(0, str(Path(__file__).parents[1]))
from interruptions.launching import train_watched  # noqa: E402
from interruptions.moments import Moment  # noqa: E402
from interruptions.small_runs import Progress, prepare  # noqa: E402


def main(config: str, progress: str, moment: str) -> None:
    """Train.

    Args:
        config: The file of the config.
        progress: The file of the progress.
        moment: The moment of the kill, or None.
    """
    prepare()
    cfg = Config.fromfile(config)
    cfg.launcher = 'pytorch'
    values = ast.literal_eval(moment)
    train_watched(cfg, Progress(Path(progress)), Moment(*values) if values else None,
                  int(os.environ['RANK']))


if __name__ == '__main__':
    main(*sys.argv[1:])
