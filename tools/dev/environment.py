"""Set up the environment for mmrla, including the compiled operators of mmcv.

    python3 tools/setup_env.py                  # create or complete .venv
    python3 tools/setup_env.py --stack onedl    # the same with OneDL's packages: .venv-onedl
    python3 tools/setup_env.py --which          # print the interpreter to use

An active virtual or conda environment that satisfies ``requirements/*.txt`` is used
without changes. Otherwise a folder is created in the repository with the versions of
``requirements/pins*.txt``. A second call takes seconds. A call after an interrupted one
skips the finished steps.

This script runs before anything is installed, so it uses the standard library only. It is
started by ``tools/setup_env.py``, which any version of Python can parse, with a version of
Python that is supported.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import sysconfig
import time
from pathlib import Path

from envsetup.console import Step, say, stop
from envsetup.mmcv_build import build_mmcv, compiler
from envsetup.stacks import REPO, REQUIREMENTS, STACKS, Stack
from envsetup.venv import Venv, unmet


def active_python(venv: Venv) -> Path | None:
    """Return the interpreter of the active environment, or None."""
    prefix = os.environ.get('VIRTUAL_ENV') or os.environ.get('CONDA_PREFIX')
    if not prefix or Path(prefix).resolve() == venv.folder.resolve():
        return None
    return Path(prefix) / 'bin' / 'python'


def stamp_value(stack: Stack) -> str:
    """Return a digest of what determines the environment: the stack and the requirements."""
    digest = hashlib.sha256(f'{REPO} {stack.name}'.encode())  # the path of the editable install
    for path in (*sorted(REQUIREMENTS.glob('*.txt')), REPO / 'setup.py'):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_tools() -> None:
    """Check for tools that pip cannot install."""
    if sys.platform != 'linux':
        stop(f'Linux is required, but this is {sys.platform}. The environment and the '
             'operators of mmcv are not tested on other systems.')
    headers = Path(sysconfig.get_paths()['include']) / 'Python.h'
    if shutil.which(compiler()[0]) is None or not headers.exists():
        stop('a C++17 compiler and the headers of Python are required to build the '
             'operators of mmcv. Debian, Ubuntu: apt-get install g++ python3-dev; Fedora: dnf '
             'install gcc-c++ python3-devel; conda: conda install gxx_linux-64; or set '
             'CXX to a compiler.')
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop('The venv module of Python is missing. Debian, Ubuntu: apt-get '
             'install python3-venv.')


def check_other_stacks(venv: Venv) -> None:
    """Stop if the folder has the packages of another stack, which share their file names."""
    for other in STACKS.values():
        if other != venv.stack and venv.has(other.mmcv):
            stop(f'{venv.name} has {other.mmcv}, and {venv.stack.name} would overwrite its files. '
                 'Choose another folder with --venv FOLDER (make: VENV=FOLDER), or remove '
                 f'{venv.name}.')


def install(venv: Venv) -> None:
    """Create or complete an environment."""
    check_tools()
    check_other_stacks(venv)
    stack, pins = venv.stack, venv.stack.pins()
    start = time.time()
    if not venv.python.exists() or not (venv.folder / 'bin/pip').exists():
        say(f'creating {venv.name}')
        venv.create()
    constrained = ['install', *(word for path in stack.constraint_files()
                                for word in ('--constraint', path))]
    with Step(f'torch {pins["torch"]}'):
        venv.pip(*constrained, '-r', REQUIREMENTS / 'build.txt', 'torch')
    with Step(f'the packages of {stack.name}, pycocotools'):
        needed = [word for path in stack.requirement_files()
                  if path.stem != stack.mmcv_file for word in ('-r', path)]
        venv.pip(*constrained, *needed)
    version = pins[stack.mmcv]
    if venv.unmet():
        with Step(f'{stack.mmcv} {version}, compiled from source (3 to 5 minutes on 2 cores, '
                  'longer with CUDA)'):
            build_mmcv(venv, version)
    else:
        Step(f'{stack.mmcv} {version}').skip('already compiled')
    with Step('mmrla'):
        venv.pip('install', '--no-deps', '--no-build-isolation', '--editable', REPO)
    reason = venv.unmet()
    if reason:
        stop(f'{venv.name} is not complete: {reason}. See {venv.log}.')
    venv.stamp.write_text(stamp_value(stack))
    say(f'ready after {time.time() - start:.0f} s: {venv.name}/bin/python')


def environment_python(venv: Venv, development: bool, accepted: list) -> tuple:
    """Return the interpreter to use, and why it is not ready yet (or '').

    Args:
        venv: The environment in the repository.
        development: Whether an active environment must have the packages for the tests.
        accepted: The stacks that an active environment may have.
    """
    active = active_python(venv)
    if active:
        reasons = []
        for stack in accepted:
            reasons.append(unmet(active, stack.requirement_files(development)))
            if not reasons[-1]:
                return active, ''
        say(f'the active environment is not used: {reasons[0]}')
    if not venv.stamp.exists() or venv.stamp.read_text() != stamp_value(venv.stack):
        return venv.python, f'{venv.name} does not exist, or the requirements have changed'
    return venv.python, venv.unmet()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--which', action='store_true',
                        help='print the interpreter to use, and do nothing else')
    parser.add_argument('--development', action='store_true',
                        help='an active environment must also have the packages for the tests')
    parser.add_argument('--stack', choices=STACKS,
                        help='the distribution of mmengine, mmcv, mmdet and mmpretrain; default: '
                        'that of the active environment, else openmmlab')
    parser.add_argument('--venv', metavar='FOLDER',
                        help='the folder of the environment; default: .venv, or .venv-onedl for '
                        'OneDL')
    return parser


def main(argv: list | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    accepted = [STACKS[args.stack]] if args.stack else list(STACKS.values())
    venv = Venv(REPO / (args.venv or accepted[0].folder), accepted[0])
    python, reason = environment_python(venv, args.development, accepted)
    if args.which:
        print(python)
    elif reason:
        install(venv)
    else:
        say(f'nothing to do: {python}')


if __name__ == '__main__':
    main()
