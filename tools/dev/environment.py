"""Set up the environment for mmrla, including the compiled operators of mmcv.

    python3 tools/setup_env.py            # create or complete .venv
    python3 tools/setup_env.py --which    # print the interpreter to use

An active virtual or conda environment that satisfies ``requirements/*.txt`` is used
without changes. Otherwise ``.venv`` is created in the repository with the versions of
``requirements/pins.txt``. A second call takes seconds. A call after an interrupted one
skips the finished steps.

This script runs before anything is installed, so it uses the standard library only. It is
started by ``tools/setup_env.py``, which any version of Python can parse, with a version of
Python that is supported.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPO / 'requirements'
PINS = REQUIREMENTS / 'pins.txt'
VENV = REPO / '.venv'
STAMP = VENV / 'mmrla-setup.sha256'
LOG = VENV / 'mmrla-setup.log'

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
if (torch.cuda.is_available() and os.environ.get('MMRLA_CPU_OPS') != '1'
        and get_compiling_cuda_version() == 'not available'):
    sys.exit('mmcv was compiled without CUDA, but there is a GPU')
"""

# mmcv is compiled with optimization and without debug symbols. torch's header is
# precompiled instead of being compiled for every file.
CXX_FLAGS = '-DNDEBUG -fwrapv -g0 -O2 -w -fPIC'
# Lines of ninja and pip that show progress.
PROGRESS = r'\[(\d+)/(\d+)\] |(Collecting|Downloading|Building|Installing)\b'
EXTENSION_FLAGS = ('-std=c++17 -DTORCH_API_INCLUDE_EXTENSION_H '
                   '-DTORCH_EXTENSION_NAME=_ext')


def stop(message: str) -> None:
    """Exit with a message that says what to do."""
    sys.exit(f'setup: {message}')


def say(message: str) -> None:
    """Print a message."""
    print(f'setup: {message}', file=sys.stderr, flush=True)


def requirement_files(development: bool = True) -> list:
    """Return the requirement files that the environment must satisfy."""
    names = ['runtime', 'mminstall', 'detection', 'pretraining', 'report']
    names += ['onnx', 'development'] if development else []
    return [REQUIREMENTS / f'{name}.txt' for name in names]


def unmet(python: Path, development: bool = True) -> str:
    """Return the first unmet requirement of an environment, or an empty string."""
    try:
        result = subprocess.run(
            [python, '-c', CHECK, *requirement_files(development)],
            capture_output=True,
            text=True)
    except OSError:
        return f'there is no interpreter at {python}'
    if result.returncode == 0:
        return ''
    return (result.stderr.strip().splitlines() or ['the check failed without a message'])[-1]


def active_python() -> Path | None:
    """Return the interpreter of the active environment, or None."""
    prefix = os.environ.get('VIRTUAL_ENV') or os.environ.get('CONDA_PREFIX')
    if not prefix or Path(prefix).resolve() == VENV:
        return None
    return Path(prefix) / 'bin' / 'python'


def stamp_value() -> str:
    """Return a digest of the files that determine the environment."""
    digest = hashlib.sha256(str(REPO).encode())  # path of the editable install
    for path in (*sorted(REQUIREMENTS.glob('*.txt')), REPO / 'setup.py'):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Step:
    """A numbered step of the setup, which prints when it starts and ends."""

    total = 4
    count = 0

    def __init__(self, title: str) -> None:
        Step.count += 1
        self.title = f'[{Step.count}/{Step.total}] {title}'

    def skip(self, reason: str) -> None:
        """Print why the step is skipped."""
        say(f'{self.title}: {reason}')

    def __enter__(self) -> Step:
        say(self.title)
        self.start = time.time()
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            say(f'{self.title}: done in {time.time() - self.start:.0f} s')


def run(command: list, env: dict | None = None, cwd: Path = REPO) -> None:
    """Run a command; its output goes to the log, its progress to the terminal."""
    live = sys.stderr.isatty()
    shown = 0.0
    with LOG.open('a') as log:
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
                text = progress[0] + 'compiled' if progress[1] else line.strip()
                end = '\r' if live else '\n'
                print(f'  {text[:76]:<78}', end=end, file=sys.stderr, flush=True)
    if live and shown:
        print(' ' * 80, end='\r', file=sys.stderr)
    if process.wait():
        tail = ''.join(LOG.read_text(errors='replace').splitlines(True)[-25:])
        stop(f'this command failed:\n  {shlex.join(map(str, command))}\n{tail}\n'
             f'The full output is in {LOG.relative_to(REPO)}. Fix the cause and '
             'run the command again; finished steps are skipped.')


def pip(*arguments, env: dict | None = None) -> None:
    """Run pip in the new environment."""
    run([VENV / 'bin/python', '-m', 'pip', '--disable-pip-version-check',
         *map(str, arguments)], env=env)


def output_of(code: str) -> str:
    """Return the output of Python code in the new environment."""
    return subprocess.run([VENV / 'bin/python', '-c', code], check=True,
                          capture_output=True, text=True).stdout.strip()


def compiler() -> list:
    """Return the command of the C++ compiler; CXX may have several words."""
    return shlex.split(os.environ.get('CXX', 'c++'))


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


def check_cuda() -> None:
    """Check that a machine with a GPU can compile operators for it."""
    facts = output_of(
        'import torch; from torch.utils.cpp_extension import CUDA_HOME; '
        'print(torch.cuda.is_available(), CUDA_HOME, torch.version.cuda)')
    available, home, cuda = facts.split()
    if os.environ.get('MMRLA_CPU_OPS') == '1':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
        say('MMRLA_CPU_OPS=1: the operators of mmcv are built for the CPU only; set '
            'MMRLA_CPU_OPS=1 and CUDA_VISIBLE_DEVICES= for all commands')
    elif os.environ.get('FORCE_CUDA') == '1' or available == 'True' and home != 'None':
        say(f'the operators of mmcv are built with CUDA from {home}')
    elif available == 'False':
        say('no GPU was found: the operators of mmcv are built for the CPU (FORCE_CUDA=1 '
            'builds them for the GPU of another machine)')
    else:
        stop(f'torch finds a GPU, but there is no CUDA toolkit (nvcc) to build the '
             f'operators of mmcv. Install the toolkit of CUDA {cuda} or set CUDA_HOME; '
             'to use the CPU only, set MMRLA_CPU_OPS=1.')


def precompiled_header(folder: Path) -> str:
    """Return the compiler flags that make mmcv use a precompiled header.

    Parsing torch's headers takes 25 s per file, and almost all of the compile time.
    gcc uses a precompiled header only if it was compiled with the same flags.
    Otherwise it reads the plain header, which is slower but correct.

    Returns:
        str: The flags, empty if the compiler does not use the header.
    """
    header, probe = folder / 'mmcv_torch.h', folder / 'probe.cpp'
    includes = output_of(
        'import sysconfig; from torch.utils.cpp_extension import include_paths; '
        'print(*[*include_paths(), sysconfig.get_paths()["include"]], sep="\\n")')
    flags = shlex.split(f'{CXX_FLAGS} {EXTENSION_FLAGS}')
    flags += [f'-I{path}' for path in includes.splitlines()]
    header.write_text('#include <torch/types.h>\n')
    probe.write_text('')
    compiled = header.with_name(header.name + '.gch')
    if not compiled.exists():
        say('precompiling the header of torch')
        partial = compiled.with_name('partial.gch')
        made = subprocess.run([*compiler(), *flags, '-x', 'c++-header', header, '-o', partial])
        if made.returncode:
            return ''
        partial.rename(compiled)
    listing = subprocess.run(
        [*compiler(), *flags, '-include', header, '-H', '-fsyntax-only', probe],
        capture_output=True, text=True).stderr
    if f'! {compiled}' in listing:
        return f'-include {shlex.quote(str(header))}'
    say('the compiler does not use the precompiled header; compiling takes longer')
    return ''


def mmcv_sources(version: str, folder: Path) -> Path:
    """Download and unpack the source distribution of mmcv, unless it is there."""
    sources = folder / f'mmcv-{version}'
    if sources.exists():
        return sources
    pip('download', '--no-deps', '--no-build-isolation', '--no-binary', 'mmcv',
        '--dest', folder, f'mmcv=={version}')
    unpacking = folder / 'unpacking'
    shutil.rmtree(unpacking, ignore_errors=True)
    # Python 3.11 has the filter since 3.11.4.
    safely = dict(filter='data') if hasattr(tarfile, 'data_filter') else {}
    with tarfile.open(folder / f'mmcv-{version}.tar.gz') as archive:
        archive.extractall(unpacking, **safely)
    (unpacking / sources.name).rename(sources)
    return sources


def build_mmcv(version: str) -> None:
    """Compile and install mmcv; ninja skips files that are already compiled."""
    torch_build = output_of('import torch; print(torch.__version__)')
    folder = VENV / f'build-torch-{torch_build}'
    folder.mkdir(exist_ok=True)
    sources = mmcv_sources(version, folder)
    check_cuda()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    env = {**os.environ, 'MMCV_WITH_OPS': '1',
           'CFLAGS': f'{CXX_FLAGS} {precompiled_header(folder)}'.strip(),
           'MAX_JOBS': os.environ.get('MAX_JOBS', str(cores)),
           'PATH': f'{VENV / "bin"}{os.pathsep}{os.environ["PATH"]}'}
    python = VENV / 'bin/python'
    run([python, 'setup.py', 'build_ext'], env=env, cwd=sources)
    run([python, '-m', 'pip', 'install', '--no-deps', '--no-build-isolation',
         '--no-cache-dir', '.'], env=env, cwd=sources)
    shutil.rmtree(folder)


def install() -> None:
    """Create or complete ``.venv``."""
    check_tools()
    python = VENV / 'bin/python'
    start = time.time()
    if not python.exists() or not (VENV / 'bin/pip').exists():
        say('creating .venv')
        subprocess.run([sys.executable, '-m', 'venv', '--clear', VENV], check=True)
    pins = dict(re.findall(r'^([\w-]+)==(\S+)$', PINS.read_text(), re.M))
    constrained = ('install', '--constraint', PINS)
    with Step(f'torch {pins["torch"]}'):
        pip(*constrained, '-r', REQUIREMENTS / 'build.txt', 'torch')
    with Step('mmengine, mmdet, mmpretrain, pycocotools'):
        needed = [arg for path in requirement_files()
                  if path.stem != 'mminstall' for arg in ('-r', path)]
        pip(*constrained, *needed)
    if unmet(python):
        with Step(f'mmcv {pins["mmcv"]}, compiled from source (3 to 5 minutes on 2 cores)'):
            build_mmcv(pins['mmcv'])
    else:
        Step(f'mmcv {pins["mmcv"]}').skip('already compiled')
    with Step('mmrla'):
        pip('install', '--no-deps', '--no-build-isolation', '--editable', REPO)
    reason = unmet(python)
    if reason:
        stop(f'.venv is not complete: {reason}. See {LOG}.')
    STAMP.write_text(stamp_value())
    say(f'ready after {time.time() - start:.0f} s: {python.relative_to(REPO)}')


def environment_python(development: bool) -> tuple:
    """Return the interpreter to use, and why it is not ready yet (or '')."""
    active = active_python()
    if active:
        reason = unmet(active, development)
        if not reason:
            return active, ''
        say(f'the active environment is not used: {reason}')
    python = VENV / 'bin/python'
    if not STAMP.exists() or STAMP.read_text() != stamp_value():
        return python, '.venv does not exist, or the requirements have changed'
    return python, unmet(python)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--which', action='store_true',
                        help='print the interpreter to use, and do nothing else')
    parser.add_argument('--development', action='store_true',
                        help='an active environment must also have the packages for the tests')
    return parser


def main(argv: list | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    python, reason = environment_python(args.development)
    if args.which:
        print(python)
    elif reason:
        install()
    else:
        say(f'nothing to do: {python}')


if __name__ == '__main__':
    main()
