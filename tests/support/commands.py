"""Running the scripts of the repository."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from .paths import REPO


def load_tool(name: str) -> ModuleType:
    """Import a script below tools/ as a module, such as ``dev/chaos``."""
    spec = importlib.util.spec_from_file_location(Path(name).name, REPO / f'tools/{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_command(script: str, *arguments, **kwargs) -> subprocess.CompletedProcess:
    """Run a script in the repository and capture both output streams.

    Args:
        script: Path in the repository. A ``.py`` file runs with this interpreter, a shell
            script in this environment.
        *arguments: Its arguments.
        **kwargs: Arguments of ``subprocess.run``.
    """
    command = [sys.executable, script] if script.endswith('.py') else [script]
    environment = dict(kwargs.pop('env', os.environ))
    if sys.prefix != sys.base_prefix:
        environment['VIRTUAL_ENV'] = sys.prefix
    return subprocess.run([*command, *map(str, arguments)], cwd=REPO, text=True,
                          capture_output=True, timeout=600, env=environment, **kwargs)


def call(script: str, *arguments, **kwargs) -> str:
    """Run a script that must succeed, and return the text of both output streams."""
    result = run_command(script, *arguments, **kwargs)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-3000:]
    return output
