"""Compile mmcv from its sources."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from .console import say
from .cuda import Facts, cuda_variables, wants_cuda
from .venv import Venv

# mmcv is compiled with optimization and without debug symbols. torch's header is
# precompiled instead of being compiled for every file.
CXX_FLAGS = '-DNDEBUG -fwrapv -g0 -O2 -w -fPIC'
EXTENSION_FLAGS = '-DTORCH_API_INCLUDE_EXTENSION_H -DTORCH_EXTENSION_NAME=_ext'
MMCV_STANDARD = '-std=c++17'
# setup.py of mmcv 2.1.0 reads its version with exec and locals(), which Python 3.13 changed.
VERSION_LINES = {
    "exec(compile(f.read(), version_file, 'exec'))":
        "scope = {}; exec(compile(f.read(), version_file, 'exec'), scope)",
    "return locals()['__version__']": "return scope['__version__']"}


def compiler() -> list:
    """Return the command of the C++ compiler; CXX may have several words."""
    return shlex.split(os.environ.get('CXX', 'c++'))


def include_folders(venv: Venv) -> list:
    """Return the folders with the headers of torch and Python."""
    return venv.output_of(
        'import sysconfig; from torch.utils.cpp_extension import include_paths; '
        'print(*[*include_paths(), sysconfig.get_paths()["include"]], sep="\\n")').splitlines()


def standard_flag(includes: list) -> str:
    """Return the compiler flag of the C++ standard that torch needs: C++20 for torch 2.15."""
    headers = [Path(folder, 'ATen/ATen.h') for folder in includes]
    text = ''.join(header.read_text() for header in headers if header.exists())
    found = re.search(r'C\+\+(\d\d) or later', text)
    return f'-std=c++{found[1]}' if found else MMCV_STANDARD


def precompiled_header(includes: list, folder: Path) -> str:
    """Return the compiler flags that make mmcv use a precompiled header.

    Parsing torch's headers takes 25 s per file, and almost all of the compile time.
    gcc uses a precompiled header only if it was compiled with the same flags.
    Otherwise it reads the plain header, which is slower but correct.

    Returns:
        str: The flags, empty if the compiler does not use the header.
    """
    header, probe = folder / 'mmcv_torch.h', folder / 'probe.cpp'
    flags = shlex.split(f'{CXX_FLAGS} {standard_flag(includes)} {EXTENSION_FLAGS}')
    flags += [f'-I{path}' for path in includes]
    header.write_text('#include <torch/types.h>\n')
    probe.write_text('')
    compiled = header.with_name(header.name + '.gch')
    if not compiled.exists():
        say('precompiling the header of torch')
        partial = compiled.with_name('partial.gch')
        made = subprocess.run([*compiler(), *flags, '-x', 'c++-header', header, '-o', partial],
                              capture_output=True, text=True, errors='replace')
        if made.returncode:
            errors = [line for line in made.stderr.splitlines() if 'error' in line]
            say(f'the header is not precompiled ({errors[0] if errors else made.stderr[:200]}); '
                'compiling takes longer')
            return ''
        partial.rename(compiled)
    listing = subprocess.run(
        [*compiler(), *flags, '-include', header, '-H', '-fsyntax-only', probe],
        capture_output=True, text=True).stderr
    if f'! {compiled}' in listing:
        return f'-include {shlex.quote(str(header))}'
    say('the compiler does not use the precompiled header; compiling takes longer')
    return ''


def unpacked_sources(venv: Venv, version: str, folder: Path) -> Path:
    """Let pip download and unpack the sources of mmcv, unless they are there.

    ``pip download`` also runs setup.py, which fails with Python 3.13 until it is corrected.
    ``--no-clean`` keeps the unpacked sources in either case.
    """
    name = venv.stack.mmcv
    sources = folder / f'{name}-{version}'
    if sources.exists():
        return sources
    unpacking = folder / 'unpacking'
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir()
    download = [venv.python, '-m', 'pip', 'download', '--no-clean', '--no-deps',
                '--no-build-isolation', '--no-binary', name, '--dest', folder, f'{name}=={version}']
    venv.exit_code(download, env={**os.environ, 'TMPDIR': str(unpacking)})
    scripts = list(unpacking.glob('*/*/setup.py'))
    if not scripts:
        venv.stop_after(download)
    scripts[0].parent.rename(sources)
    shutil.rmtree(unpacking)
    return sources


def correct_script(script: Path, standard: str) -> None:
    """Let mmcv's setup.py run on Python 3.13, and compile with another C++ standard."""
    text = script.read_text().replace(MMCV_STANDARD, standard)
    if all(line in text for line in VERSION_LINES):
        for line, corrected in VERSION_LINES.items():
            text = text.replace(line, corrected)
    script.write_text(text)


def build_mmcv(venv: Venv, version: str) -> None:
    """Compile and install mmcv; ninja skips files that are already compiled."""
    facts = Facts.of(venv)
    folder = venv.folder / f'build-torch-{facts.torch}'
    folder.mkdir(exist_ok=True)
    cuda = cuda_variables(facts, compiler(), folder) if wants_cuda(facts) else {}
    sources, includes = unpacked_sources(venv, version, folder), include_folders(venv)
    correct_script(sources / 'setup.py', standard_flag(includes))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    env = {**os.environ, **cuda, 'MMCV_WITH_OPS': '1',
           'CFLAGS': f'{CXX_FLAGS} {precompiled_header(includes, folder)}'.strip(),
           'MAX_JOBS': os.environ.get('MAX_JOBS', str(cores)),
           'PATH': f'{venv.folder / "bin"}{os.pathsep}{os.environ["PATH"]}'}
    venv.run([venv.python, 'setup.py', 'build_ext'], env=env, cwd=sources)
    venv.run([venv.python, '-m', 'pip', 'install', '--no-deps', '--no-build-isolation',
              '--no-cache-dir', '.'], env=env, cwd=sources)
    shutil.rmtree(folder)
