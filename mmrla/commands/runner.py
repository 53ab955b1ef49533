"""Build the runner of a config, after the checks of the config and the data."""
import copy
from typing import Tuple

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmrla.engine.config_checks import check_arguments
from mmrla.engine.preflight import check_disk, check_run

from .errors import value_errors
from .live import is_quiet, quiet_runner


def check_config(cfg: Config, loaders: Tuple[str, ...]) -> None:
    """Check a config against the modules, files and folders that it names.

    Args:
        cfg: The config of a run.
        loaders: The data loaders that the run uses.
    """
    check_arguments(cfg)
    check_run(cfg, loaders)


def build_runner(cfg: Config, source: str = 'config') -> Runner:
    """Build the runner that ``runner_type`` names, by default ``RLARunner``.

    Args:
        cfg: The config of a run.
        source: The name of the config, for the messages about wrong values.
    """
    cfg.setdefault('runner_type', 'RLARunner')
    if is_quiet():
        cfg = copy.copy(cfg)
        cfg.runner_type = quiet_runner(cfg.runner_type)
    with value_errors(source):
        return RUNNERS.build(cfg)


def prepare_training(runner: Runner, source: str) -> None:
    """Build the data, the optimizer and the schedule, so that wrong values end in one line.

    ``Runner.train`` keeps what is built already.
    """
    with value_errors(source):
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    check_disk(runner.model, runner.cfg)


def prepare_testing(runner: Runner, source: str) -> None:
    """Build the test data, so that wrong values end in one line."""
    with value_errors(source):
        runner._test_loop = runner.build_test_loop(runner._test_loop)
