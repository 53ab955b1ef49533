"""Runners for tests."""
import uuid
from pathlib import Path

from mmengine.runner import runner as mmengine_runner_module
from torch import nn

from mmrla.engine import RLARunner


def make_runner(model: nn.Module, work_dir: Path, monkeypatch) -> RLARunner:
    """A runner with a model and nothing to do."""
    monkeypatch.setattr(mmengine_runner_module, 'collect_env', dict)  # it asks the compilers
    return RLARunner(model=model, work_dir=str(work_dir), log_level='ERROR',
                     experiment_name=uuid.uuid4().hex)
