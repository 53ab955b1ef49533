"""Build the runner of a config."""
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner


def build_runner(cfg: Config) -> Runner:
    """Build the runner that ``runner_type`` names, by default ``RLARunner``."""
    cfg.setdefault('runner_type', 'RLARunner')
    return RUNNERS.build(cfg)
