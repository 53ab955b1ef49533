"""The command ``mmrla``.

This module is outside the package because ``import mmrla`` imports torch, mmengine and
mmcv: ``mmrla --help`` would take seconds, and ``mmrla doctor`` could not say which of them
is missing.
"""
import difflib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import List, Optional

# Subcommands whose modules work without any other module of the package.
STANDALONE = ('doctor',)
# Options of torchrun in the environment. By default torchrun dies of SIGUSR1, which clusters send
# before a time limit, and kills its processes 30 s after a signal, while they may still save.
TORCHRUN_SETTINGS = dict(PET_SIGNALS_TO_HANDLE='SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1',
                         PET_SHUTDOWN_TIMEOUT='600')


def load(path: Path, name: str) -> ModuleType:
    """Load a module from its file, without the package around it."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_folder() -> Path:
    """Return the folder of the package, without importing it."""
    return Path(importlib.util.find_spec('mmrla').origin).parent


def help_text(commands: dict) -> str:
    """Return the list of subcommands."""
    width = max(map(len, commands))
    return '\n'.join([
        'usage: mmrla COMMAND [ARGUMENTS]', '',
        'Recurrent layer aggregation (RLA) for detectors and classifiers.', '',
        *(f'  {name:<{width}}  {what}' for name, what in commands.items()), '',
        'From a folder of annotated images to a detector:', '',
        '  mmrla init DATA                   # writes DATA.py',
        '  mmrla train DATA.py',
        '  mmrla report work_dirs/DATA       # writes report.html',
        '  mmrla predict work_dirs/DATA IMAGES', '',
        'mmrla COMMAND --help describes the arguments of a command.'])


def run_distributed(command: str, count: int, words: List[str]) -> None:
    """Run a command in several processes on this machine, and end with its exit code.

    Args:
        command: ``train`` or ``test``.
        count: The number of processes.
        words: The arguments of the command; ``--gpus`` is left out.
    """
    words = list(words)
    for number, word in enumerate(words):
        if word == '--gpus':
            del words[number:number + 2]
            break
        if word.startswith('--gpus='):
            del words[number]
            break
    run_torchrun(['--standalone', f'--nproc-per-node={count}', '-m', 'mmrla', command, *words,
                  '--launcher', 'pytorch'])


def run_torchrun(arguments: List[str]) -> None:
    """Run torchrun, and print the message of the process that failed as the last line.

    torchrun prints a long report after the message. Signals are passed on to it, and the exit
    code after one is 128 plus its number, as without torchrun.
    """
    passed_on = []

    def pass_on(number: int, frame: Optional[FrameType]) -> None:
        passed_on.append(number)
        process.send_signal(number)

    with tempfile.TemporaryDirectory(prefix='mmrla-') as folder:
        error = Path(folder) / 'error.txt'
        process = subprocess.Popen(
            [sys.executable, '-m', 'torch.distributed.run', *arguments],
            env={**TORCHRUN_SETTINGS, **os.environ, 'MMRLA_ERROR_FILE': str(error),
                 'MMRLA_STARTED_FILE': str(Path(folder) / 'started')})
        # A terminal sends its interrupt to torchrun, too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, pass_on)
        code = process.wait()
        has_failed = error.is_file()
        if code and has_failed:
            print(error.read_text().strip(), file=sys.stderr)
    if code and passed_on and not has_failed:
        code = -passed_on[0]
    sys.exit(code if code >= 0 else 128 - code)


def main(argv: Optional[List[str]] = None) -> None:
    """Run a subcommand."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ['--torchrun']:  # tools/dist_train.sh
        network = load(package_folder() / 'engine/network.py', 'mmrla_network')
        run_torchrun([*network.join_machines(words[1:]), *words[1:]])
    folder = package_folder()
    commands = load(folder / 'commands/__init__.py', 'mmrla_commands').COMMANDS
    if not words or words[0] in ('-h', '--help', 'help'):
        print(help_text(commands))
        return
    if words[0] in ('-V', '--version', 'version'):
        print(f'mmrla {load(folder / "version.py", "mmrla_version").__version__}')
        return
    name = words[0].replace('_', '-')
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1, cutoff=0.4)
        advice = f'did you mean {near[0]}?' if near else 'mmrla --help lists the commands'
        raise SystemExit(f'mmrla: {words[0]} is not a command; {advice}')
    os.environ.setdefault('MMRLA_SCREEN', 'summary')
    sys.argv = [f'mmrla {name}', *words[1:]]  # argparse shows it in its messages
    module = name.replace('-', '_')
    if name in STANDALONE:
        load(folder / f'commands/{module}.py', f'mmrla_{module}').main(words[1:])
    else:
        _import(f'mmrla.commands.{module}').main(words[1:])


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise SystemExit(f'mmrla: {error}; `mmrla doctor` says how to fix the installation'
                         ) from error


if __name__ == '__main__':
    main()
