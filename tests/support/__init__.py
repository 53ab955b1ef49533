"""Helpers of the tests, one module per concern."""
from .commands import call, load_tool, run_command
from .paths import CONFIGS, REPO
from .stack import ONEDL

__all__ = ['CONFIGS', 'ONEDL', 'REPO', 'call', 'load_tool', 'run_command']
