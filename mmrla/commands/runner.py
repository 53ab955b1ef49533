"""Build the runner of a config, after the checks of the config and the data."""
import copy
import warnings
from typing import Tuple

from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmrla.engine import RLARunner
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
    if not is_quiet():
        with value_errors(source):
            return RUNNERS.build(cfg)
    cfg = copy.copy(cfg)
    cfg.runner_type = quiet_runner(cfg.runner_type)
    with value_errors(source), warnings.catch_warnings(record=True) as caught:
        runner = RUNNERS.build(cfg)
    for warning in caught:  # there is no log file before
        runner.logger.warning(f'{warning.filename}:{warning.lineno}: {warning.message}')
    return runner


def prepare_training(runner: Runner, source: str) -> None:
    """Find the weights, then build the data and the optimizer: errors end in one line.

    ``Runner.train`` keeps what is built already.
    """
    if isinstance(runner, RLARunner):
        runner.prepare_weights()
    with value_errors(source):
        _ = runner.train_loop  # this property builds the loop
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    check_disk(runner.model, runner.cfg)


def prepare_testing(runner: Runner, source: str) -> None:
    """Build the test data, so that wrong values end in one line."""
    with value_errors(source):
        _ = runner.test_loop  # this property builds the loop
