"""A virtual environment and the log of its set-up."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from .console import stop
from .stacks import REPO, Stack

# Lines of ninja and pip that show progress.
PROGRESS = r'\[(\d+)/(\d+)\] |(Collecting|Downloading|Building|Installing)\b'

# Runs inside an environment: checks the requirements and loads the operators of mmcv.
CHECK = """
import sys
from importlib.metadata import PackageNotFoundError, version
from packaging.requirements import Requirement
for path in sys.argv[1:]:
    for line in open(path):
        line = line.split('#')[0].strip()
        if not line:
            continue
        requirement = Requirement(line)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            sys.exit(f'{requirement.name} is not installed')
        if not requirement.specifier.contains(installed, prereleases=True):
            sys.exit(f'{requirement} is needed, {installed} is installed')
import os, torch, mmcv._ext
from mmcv.ops import get_compiling_cuda_version
if (get_compiling_cuda_version() == 'not available' and os.environ.get('MMRLA_CPU_OPS') != '1'):
    if torch.cuda.is_available():
        sys.exit('mmcv was compiled without CUDA, but there is a GPU')
    if os.environ.get('FORCE_CUDA') == '1':
        sys.exit('mmcv was compiled without CUDA, but FORCE_CUDA=1 is set')
"""


def unmet(python: Path, files: list) -> str:
    """Return the first requirement that an environment does not meet, or an empty string."""
    try:
        result = subprocess.run([python, '-c', CHECK, *files], capture_output=True, text=True)
    except OSError:
        return f'there is no interpreter at {python}'
    if result.returncode == 0:
        return ''
    return (result.stderr.strip().splitlines() or ['the check failed without a message'])[-1]


def minutes(seconds: float) -> str:
    """Return a duration for people."""
    return f'{seconds:.0f} s' if seconds < 100 else f'{seconds / 60:.0f} min'


def progress_text(done: int, total: int, seconds: float) -> str:
    """Return the progress of a build; the estimate begins with the second tenth of the files."""
    text = f'{done} of {total} files compiled, {minutes(seconds)}'
    if 10 * done < total:
        return text
    return f'{text}; about {minutes(seconds / done * (total - done))} left'


class Venv:
    """A virtual environment in the repository.

    Args:
        folder: Its folder.
        stack: The stack that it contains.
    """

    def __init__(self, folder: Path, stack: Stack) -> None:
        self.folder = folder
        self.stack = stack
        self.python = folder / 'bin/python'
        self.log = folder / 'mmrla-setup.log'
        self.stamp = folder / 'mmrla-setup.sha256'

    @property
    def name(self) -> str:
        """The folder as messages show it."""
        return os.path.relpath(self.folder, REPO)

    def create(self) -> None:
        """Create an empty environment."""
        subprocess.run([sys.executable, '-m', 'venv', '--clear', self.folder], check=True)

    def has(self, distribution: str) -> bool:
        """Return whether a distribution is installed."""
        pattern = f'lib/python*/site-packages/{distribution.replace("-", "_")}-*.dist-info'
        return any(self.folder.glob(pattern))

    def unmet(self) -> str:
        """Return the first unmet requirement, or an empty string."""
        return unmet(self.python, self.stack.requirement_files())

    def output_of(self, code: str) -> str:
        """Return the output of Python code."""
        return subprocess.run([self.python, '-c', code], check=True, capture_output=True,
                              text=True).stdout.strip()

    def pip(self, *arguments) -> None:
        """Run pip."""
        self.run([self.python, '-m', 'pip', '--disable-pip-version-check', *map(str, arguments)])

    def run(self, command: list, env: dict | None = None, cwd: Path = REPO) -> None:
        """Run a command as :meth:`exit_code` does, and stop if it fails."""
        if self.exit_code(command, env, cwd):
            self.stop_after(command)

    def stop_after(self, command: list) -> None:
        """Exit with a command that failed and the end of its output."""
        tail = ''.join(self.log.read_text(errors='replace').splitlines(True)[-25:])
        stop(f'this command failed:\n  {shlex.join(map(str, command))}\n{tail}\n'
             f'The full output is in {self.name}/{self.log.name}. Fix the cause and '
             'run the command again; finished steps are skipped.')

    def exit_code(self, command: list, env: dict | None = None, cwd: Path = REPO) -> int:
        """Run a command; its output goes to the log, its progress to the terminal."""
        live = sys.stderr.isatty()
        start, shown = time.time(), 0.0
        with self.log.open('a') as log:
            log.write(f'\n$ {shlex.join(map(str, command))}\n')
            log.flush()
            process = subprocess.Popen(
                command, env=env, cwd=cwd, text=True, errors='replace',
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for line in process.stdout:
                log.write(line)
                progress = re.match(PROGRESS, line)
                if progress and time.time() - shown > (0.2 if live else 15):
                    shown = time.time()
                    text = (progress_text(int(progress[1]), int(progress[2]), shown - start)
                            if progress[1] else line.strip())
                    print(f'  {text[:76]:<78}', end='\r' if live else '\n', file=sys.stderr,
                          flush=True)
        if live and shown:
            print(' ' * 80, end='\r', file=sys.stderr)
        return process.wait()
