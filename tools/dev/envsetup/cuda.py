"""Whether the operators of mmcv are compiled for GPUs, and what their compilation needs."""
from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .console import say, stop

# Runs inside the new environment.
FACTS = """
import importlib.util, json, torch
from torch.utils.cpp_extension import CUDA_HOME
nvidia = importlib.util.find_spec('nvidia')
print(json.dumps(dict(
    torch=torch.__version__, cuda=torch.version.cuda, home=CUDA_HOME,
    capabilities=[torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())],
    architectures=torch.cuda.get_arch_list(),
    packages=list(nvidia.submodule_search_locations) if nvidia else [])))
"""
# What torch's headers include beside the runtime. Some toolkits are installed without them.
HEADERS = ('cuda_runtime.h', 'cublas_v2.h', 'cublasLt.h', 'cusparse.h', 'cusolverDn.h')
CPU_ONLY = 'to use the CPU only, set MMRLA_CPU_OPS=1'


@dataclass(frozen=True)
class Facts:
    """What torch knows about CUDA.

    Attributes:
        torch: The version of torch.
        cuda: The version of CUDA that torch was built for, or None.
        home: The toolkit that torch finds, or None.
        capabilities: The compute capability of each GPU.
        architectures: The architectures in torch, such as ``sm_80``.
        packages: The folders of the nvidia packages.
    """
    torch: str
    cuda: str | None
    home: str | None
    capabilities: list
    architectures: list
    packages: list

    @classmethod
    def of(cls, venv) -> Facts:
        """Ask the torch of an environment."""
        return cls(**json.loads(venv.output_of(FACTS).splitlines()[-1]))


def wants_cuda(facts: Facts) -> bool:
    """Return whether to compile for GPUs, and print why."""
    if os.environ.get('MMRLA_CPU_OPS') == '1':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
        say('MMRLA_CPU_OPS=1: the operators of mmcv are built for the CPU only; set '
            'MMRLA_CPU_OPS=1 and CUDA_VISIBLE_DEVICES= for all commands')
        return False
    if facts.capabilities or os.environ.get('FORCE_CUDA') == '1':
        return True
    say('no GPU was found: the operators of mmcv are built for the CPU (FORCE_CUDA=1 '
        'builds them for the GPU of another machine)')
    return False


def toolkit_of(nvcc: Path) -> tuple:
    """Return the folder and the version of the toolkit that a compiler belongs to.

    ``nvcc`` may be a link or a script in another folder, so the compiler is asked.
    """
    plan = subprocess.run([nvcc, '--dryrun', '-x', 'cu', '-c', os.devnull, '-o', os.devnull],
                          capture_output=True, text=True).stderr
    version = subprocess.run([nvcc, '--version'], capture_output=True, text=True).stdout
    top = re.search(r'^#\$ TOP=(.+)$', plan, re.M)
    release = re.search(r'release (\d+\.\d+)', version)
    folder = Path(top[1]).resolve() if top else nvcc.parents[1]
    return folder, release[1] if release else ''


def check_toolkit(facts: Facts) -> Path:
    """Return the folder of a toolkit that fits torch, or stop."""
    if facts.cuda is None:
        stop(f'torch {facts.torch} is built for the CPU, so the operators of mmcv cannot be '
             f'compiled for a GPU. Install a torch that is built for CUDA; {CPU_ONLY}.')
    nvcc = Path(facts.home or '/nonexistent') / 'bin/nvcc'
    if not nvcc.exists():
        stop('there is no CUDA toolkit (nvcc) to build the operators of mmcv. Install the toolkit '
             f'of CUDA {facts.cuda} or set CUDA_HOME; {CPU_ONLY}.')
    folder, version = toolkit_of(nvcc)
    if version.split('.')[0] != facts.cuda.split('.')[0]:
        stop(f'the CUDA toolkit in {folder} is version {version}, but torch is built for CUDA '
             f'{facts.cuda}. Install the toolkit of CUDA {facts.cuda} and set CUDA_HOME; '
             f'{CPU_ONLY}.')
    return folder


def architectures(facts: Facts) -> str:
    """Return TORCH_CUDA_ARCH_LIST: the user's, else that of the GPUs, else code for all GPUs."""
    chosen = os.environ.get('TORCH_CUDA_ARCH_LIST')
    if chosen:
        return chosen
    if facts.capabilities:
        return ';'.join(sorted({f'{major}.{minor}' for major, minor in facts.capabilities}))
    lowest = min(int(name[3:]) for name in facts.architectures if name.startswith('sm_'))
    say('no GPU was found: the operators of mmcv are built for every GPU that torch supports, and '
        'the driver compiles them at their first use; TORCH_CUDA_ARCH_LIST=8.0 builds them for one')
    return f'{lowest // 10}.{lowest % 10}+PTX'


def include_folders(facts: Facts, toolkit: Path) -> list:
    """Return the folders of headers that the toolkit lacks, from the nvidia packages."""
    known = [folder / 'include' for folder in (toolkit, Path(facts.home)) if folder]
    if all((toolkit / 'include' / name).exists() for name in HEADERS):
        return known
    return known + [path for package in facts.packages
                    for path in sorted(Path(package).glob('*/include'))]


def library_folder(facts: Facts, toolkit: Path, folder: Path) -> Path:
    """Return a folder with ``libcudart.so``: the toolkit's, else a link to that of a package.

    The packages have ``libcudart.so.13`` only, which the linker does not find by its name.
    """
    for path in (toolkit / 'lib64', toolkit / 'lib'):
        if (path / 'libcudart.so').exists():
            return path
    for package in facts.packages:
        for library in sorted(Path(package).glob('*/lib/libcudart.so.*')):
            (folder / 'lib').mkdir(exist_ok=True)
            link = folder / 'lib/libcudart.so'
            link.unlink(missing_ok=True)
            link.symlink_to(library)
            return link.parent
    stop(f'neither {toolkit} nor a nvidia package has libcudart.so. Install the package '
         f'nvidia-cuda-runtime of CUDA {facts.cuda}; {CPU_ONLY}.')


def check_compiler(nvcc: Path, compiler: list, env: dict, folder: Path) -> None:
    """Compile one small file, so that a missing header or a wrong gcc is found at once."""
    probe = folder / 'probe.cu'
    probe.write_text(''.join(f'#include <{name}>\n' for name in HEADERS)
                     + '__global__ void probe(float *x) { *x = 1; }\n')
    result = subprocess.run(
        [nvcc, '-ccbin', compiler[-1], '-std=c++17', '-c', probe, '-o', folder / 'probe.o'],
        env=env, capture_output=True, text=True)
    if result.returncode == 0:
        return
    lines = (result.stdout + result.stderr).splitlines()
    reason = next((line.strip() for line in lines if 'error' in line), lines[-1] if lines else '')
    if 'unsupported GNU version' in reason:
        stop(f'{compiler[-1]} is too new for the CUDA toolkit ({reason}). Install an older g++ and '
             f'set CXX to it; {CPU_ONLY}.')
    stop(f'the CUDA compiler cannot compile a file with torch\'s headers ({reason}). Install what '
         f'is missing; {CPU_ONLY}.')


def cuda_variables(facts: Facts, compiler: list, folder: Path) -> dict:
    """Return the environment variables for a build with CUDA, or stop with the reason.

    Args:
        facts: What torch knows about CUDA.
        compiler: The command of the C++ compiler.
        folder: A folder for files of the build.
    """
    toolkit = check_toolkit(facts)
    variables = dict(
        FORCE_CUDA='1', CUDA_HOME=str(toolkit), TORCH_CUDA_ARCH_LIST=architectures(facts),
        CPATH=_joined(include_folders(facts, toolkit), 'CPATH'),
        LIBRARY_PATH=_joined([library_folder(facts, toolkit, folder)], 'LIBRARY_PATH'))
    check_compiler(toolkit / 'bin/nvcc', compiler, {**os.environ, **variables}, folder)
    say(f'the operators of mmcv are built with CUDA from {toolkit} for '
        f'{variables["TORCH_CUDA_ARCH_LIST"]}')
    return variables


def _joined(folders: list, name: str) -> str:
    """Return a list of folders for an environment variable, the user's first."""
    return os.pathsep.join([*filter(None, [os.environ.get(name)]), *map(str, folders)])
