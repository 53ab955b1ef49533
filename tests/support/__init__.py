"""Helpers of the tests, one module per concern."""
from .commands import call, load_tool, run_command
from .paths import CONFIGS, REPO

__all__ = ['CONFIGS', 'REPO', 'call', 'load_tool', 'run_command']
