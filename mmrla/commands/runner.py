"""Building the runner of a config, after the checks that need no runner."""
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmrla.weights.writing import SaveError, explain


def build_runner(cfg: Config) -> Runner:
    """Build the runner that ``runner_type`` names, by default mmengine's ``Runner``."""
    make_work_dir(cfg.work_dir)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


def make_work_dir(work_dir: str) -> None:
    """Create the work dir, so that a path that cannot be written is named at once."""
    try:
        Path(work_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(explain(error, work_dir)) from error
