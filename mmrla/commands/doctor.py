"""Check the installation, and name the command that fixes each problem: ``mmrla doctor``.

This module uses the standard library only, so that it works where nothing else does. Each
package is imported in a process of its own, because a broken one may crash.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

OK, NOTE, PROBLEM = 'ok', 'note', 'problem'
PYTHONS = ((3, 11), (3, 12), (3, 13))
# Package, the version that mmrla is tested with, and what it accepts.
PACKAGES = (('torch', '2.13.0', '>=2.6'), ('torchvision', '0.28.0', ''),
            ('numpy', '2.4.6', ''), ('pycocotools', '2.0.11', '>=2.0.7'))
# The packages of each stack, in the same order. Two in the same place overwrite each other.
STACKS = dict(
    openmmlab=(('mmengine', '0.10.7', '>=0.10.4,<1.0'), ('mmcv', '2.1.0', '>=2.0.0,<2.2.0'),
               ('mmdet', '3.3.0', '>=3.3.0,<3.4'), ('mmpretrain', '1.2.0', '>=1.2.0,<2.0')),
    onedl=(('onedl-mmengine', '0.10.12', '>=0.10.12,<1.0'),
           ('onedl-mmcv', '2.3.6', '>=2.3.6,<2.4.0'),
           ('onedl-mmdetection', '3.5.1', '>=3.5.1,<4.0'),
           ('onedl-mmpretrain', '1.3.6', '>=1.3.6,<2.0')))
EXTRAS = (('faster-coco-eval', 'faster evaluation'), ('supervision', 'the confusion matrix'),
          ('tensorboard', 'mmrla train --tensorboard'), ('wandb', 'mmrla train --wandb'),
          ('mlflow', 'mmrla train --mlflow'))
HOSTS = (('torchvision\'s weights', 'https://download.pytorch.org/models/resnet50-0676ba61.pth'),
         ('OpenMMLab\'s weights', 'https://download.openmmlab.com/mmdetection/v3.0/'))
SECONDS = 4
TORCH = """
import json, torch
from torch.utils.cpp_extension import CUDA_HOME
gpus = [dict(name=torch.cuda.get_device_name(i), total=torch.cuda.mem_get_info(i)[1],
             free=torch.cuda.mem_get_info(i)[0]) for i in range(torch.cuda.device_count())]
print(json.dumps(dict(cuda=torch.version.cuda, available=torch.cuda.is_available(),
                      home=CUDA_HOME, gpus=gpus)))
"""
OPERATORS = """
import json, torch
from mmcv.ops import get_compiling_cuda_version, nms
boxes = torch.tensor([[0., 0., 9., 9.], [1., 1., 9., 9.]])
kept = nms(boxes, torch.tensor([0.9, 0.8]), 0.5)[1]
print(json.dumps(dict(kept=kept.tolist(), cuda=get_compiling_cuda_version())))
"""
REBUILD = ('python3 tools/setup_env.py --stack {} in a clone of mmrla, or MMCV_WITH_OPS=1 pip '
           'install --no-build-isolation --no-cache-dir --force-reinstall --no-deps {}=={}')
FORMS = 'from mmrla.commands import compare_forms; compare_forms.print_comparison()'
SWITCH = ('set MMRLA_MEMORY_SAVING=0 in the environment, or model.backbone.memory_saving=False, '
          'and report it with this line')


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        level: ``ok``, ``note`` or ``problem``.
        name: What was checked.
        text: What was found.
        fix: A command, or what else to do.
    """
    level: str
    name: str
    text: str
    fix: str = ''


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Check the installation, and name the command that fixes each problem.')
    parser.add_argument('--offline', action='store_true',
                        help='do not try to reach the hosts of pretrained weights')
    parser.add_argument('--forms', action='store_true',
                        help='compare the memory-saving and the plain forms of the backbone on '
                        'this machine, which takes half a minute')
    return parser


def installed(package: str) -> Optional[str]:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def numbers(text: str) -> Tuple[int, ...]:
    """Return a version as numbers, without what follows a plus sign."""
    return tuple(int(part) for part in re.findall(r'\d+', text.split('+')[0]))


def accepts(specifier: str, found: str) -> bool:
    """Return whether a version meets a specifier such as ``>=2.0.0,<2.2.0``."""
    for part in filter(None, specifier.split(',')):
        sign, limit = re.match(r'([<>=]+)(.+)', part).groups()
        pair = numbers(found), numbers(limit)
        if not (pair[0] >= pair[1] if sign == '>=' else pair[0] < pair[1]):
            return False
    return True


def ask(code: str) -> Tuple[Optional[dict], str]:
    """Run code that prints JSON in another process; return its answer or its last line."""
    result = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True,
                            text=True)
    if result.returncode == 0:
        return json.loads(result.stdout.strip().splitlines()[-1]), ''
    lines = result.stderr.strip().splitlines() or [f'it ended with code {result.returncode}']
    return None, lines[-1]


def check_python() -> Finding:
    """The interpreter."""
    found = sys.version.split()[0]
    tested = ', '.join(f'{major}.{minor}' for major, minor in PYTHONS)
    text = f'{found} at {sys.executable}'
    if sys.version_info[:2] in PYTHONS:
        return Finding(OK, 'Python', text)
    return Finding(NOTE, 'Python', f'{text}; tested are {tested}', 'make PYTHON3=python3.11 env')


def chosen_stack() -> str:
    """Return the stack that is installed; OpenMMLab's if there is none."""
    return 'onedl' if installed('onedl-mmengine') else 'openmmlab'


def rebuild() -> str:
    """Return the command that compiles mmcv."""
    stack = chosen_stack()
    return REBUILD.format(stack, *STACKS[stack][1][:2])


def check_stack() -> Finding:
    """OpenMMLab's packages or OneDL's, but not both."""
    for pair in zip(*STACKS.values(), strict=True):
        names = [name for name, _, _ in pair if installed(name)]
        if len(names) > 1:
            return Finding(PROBLEM, 'stack', f'{" and ".join(names)} overwrite each other\'s files',
                           f'pip uninstall -y {" ".join(names)}, then install one of them')
    return Finding(OK, 'stack', chosen_stack())


def check_packages() -> Iterator[Finding]:
    """The versions of what mmrla needs."""
    for name, tested, accepted in PACKAGES + STACKS[chosen_stack()]:
        found = installed(name)
        wanted = f'pip install "{name}{accepted}"' if 'mmcv' not in name else rebuild()
        if found is None:
            yield Finding(PROBLEM, name, 'not installed', wanted)
        elif not accepts(accepted, found):
            yield Finding(PROBLEM, name, f'{found}; needed is {accepted}', wanted)
        elif numbers(found) != numbers(tested):
            yield Finding(NOTE, name, f'{found}; tested is {tested}')
        else:
            yield Finding(OK, name, found)


def check_torch() -> Iterator[Finding]:
    """CUDA, the toolkit and the GPUs."""
    answer, error = ask(TORCH)
    if answer is None:
        yield Finding(PROBLEM, 'import torch', error, 'pip install --force-reinstall torch')
        return
    has_driver = shutil.which('nvidia-smi') is not None
    if not answer['available']:
        if has_driver and answer['cuda'] is None:
            yield Finding(PROBLEM, 'GPU', 'this machine has one, but torch is built for the CPU',
                          'pip install --force-reinstall torch --index-url '
                          'https://download.pytorch.org/whl/cu130')
        elif has_driver:
            yield Finding(PROBLEM, 'GPU', f'torch is built for CUDA {answer["cuda"]} but cannot '
                          'use the GPU', 'nvidia-smi; update the driver if its CUDA version is '
                          'lower')
        else:
            yield Finding(NOTE, 'GPU', 'none: training runs on the CPU')
        return
    for gpu in answer['gpus']:
        free, total = (gpu[key] / 2**30 for key in ('free', 'total'))
        is_full = free < 0.5 * total
        yield Finding(NOTE if is_full else OK, gpu['name'],
                      f'{free:.1f} of {total:.1f} GB are free',
                      'nvidia-smi shows which processes use it' if is_full else '')
    yield _check_toolkit(answer)


def _check_toolkit(answer: dict) -> Finding:
    """The CUDA compiler, which only the build of mmcv needs."""
    nvcc = shutil.which('nvcc') or (f'{answer["home"]}/bin/nvcc' if answer['home'] else None)
    if nvcc is None or not Path(nvcc).exists():
        return Finding(NOTE, 'CUDA toolkit', 'no nvcc; it is needed to compile mmcv only')
    output = subprocess.run([nvcc, '--version'], capture_output=True, text=True).stdout
    found = re.search(r'release ([\d.]+)', output)
    toolkit = found[1] if found else '?'
    if numbers(toolkit)[:1] != numbers(answer['cuda'])[:1]:
        return Finding(PROBLEM, 'CUDA toolkit', f'{toolkit}, but torch is built for CUDA '
                       f'{answer["cuda"]}', f'install the toolkit of CUDA {answer["cuda"]} and set '
                       'CUDA_HOME')
    return Finding(OK, 'CUDA toolkit', f'{toolkit}, as torch\'s {answer["cuda"]}')


def check_operators() -> Finding:
    """The compiled operators of mmcv."""
    answer, error = ask(OPERATORS)
    if answer is None:
        return Finding(PROBLEM, 'mmcv operators', error, rebuild())
    if answer['kept'] != [0]:
        return Finding(PROBLEM, 'mmcv operators', f'nms returned {answer["kept"]}, not [0]',
                       rebuild())
    return Finding(OK, 'mmcv operators', f'compiled, CUDA {answer["cuda"]}')


def check_package_itself() -> Finding:
    """mmrla."""
    answer, error = ask('import json, mmrla; print(json.dumps(dict(version=mmrla.__version__, '
                        'path=mmrla.__file__)))')
    if answer is None:
        return Finding(PROBLEM, 'import mmrla', error, 'solve the problems above first')
    return Finding(OK, 'mmrla', f'{answer["version"]} at {Path(answer["path"]).parent}')


def check_forms() -> Iterator[Finding]:
    """The memory-saving forms of the backbone, on this machine's device."""
    answer, error = ask(FORMS)
    if answer is None:
        yield Finding(PROBLEM, 'memory-saving forms', error, SWITCH)
        return
    for case, found in answer['cases'].items():
        text = (f'{case}, {answer["device"]}: differ by {found["difference"]:.0e} from the plain '
                f'forms; {found["time"]:.2f} of their time, {found["saved"]:.2f} of the tensors '
                'saved for backward')
        is_exact = found['difference'] <= answer['tolerance']  # False for NaN
        yield Finding(OK if is_exact else PROBLEM, 'memory-saving forms', text,
                      '' if is_exact else SWITCH)


def check_extras() -> Iterator[Finding]:
    """Packages that single commands need."""
    for name, purpose in EXTRAS:
        found = installed(name)
        yield (Finding(OK, name, found) if found else
               Finding(NOTE, name, f'not installed; {purpose} needs it', f'pip install {name}'))


def check_machine() -> Iterator[Finding]:
    """Disk and shared memory."""
    free = shutil.disk_usage('.').free / 2**30
    yield Finding(OK if free > 10 else PROBLEM, 'disk', f'{free:.0f} GB are free here',
                  '' if free > 10 else 'free some space: a run of Faster R-CNN keeps 1 GB or more')
    shared = Path('/dev/shm')
    if shared.is_dir():
        size = shutil.disk_usage(shared).total / 2**30
        yield Finding(OK if size >= 1 else PROBLEM, 'shared memory', f'{size:.1f} GB',
                      '' if size >= 1 else 'docker run --shm-size=8g, or num_workers=0')
    yield Finding(OK, 'CPU', f'{os.cpu_count()} cores')


def check_weights() -> Iterator[Finding]:
    """The hosts of pretrained weights."""
    cache = Path(os.environ.get('TORCH_HOME', Path.home() / '.cache/torch')) / 'hub/checkpoints'
    kept = sorted(path.name for path in cache.glob('*.pth')) if cache.is_dir() else []
    for name, address in HOSTS:
        request = urllib.request.Request(address, method='HEAD')
        try:
            urllib.request.urlopen(request, timeout=SECONDS).close()
            yield Finding(OK, name, 'reachable')
        except urllib.error.HTTPError:  # the host answers
            yield Finding(OK, name, 'reachable')
        except OSError as error:
            reason = getattr(error, 'reason', error)
            yield Finding(NOTE, name, f'not reachable ({reason}); {len(kept)} files are in {cache}',
                          f'put the file of the weights into {cache}, or pass one with '
                          '--pretrained')


def findings(offline: bool, forms: bool = False) -> Iterator[Finding]:
    """Run all checks."""
    yield check_python()
    yield check_stack()
    yield from check_packages()
    yield from check_torch()
    yield check_operators()
    yield check_package_itself()
    yield from check_extras()
    yield from check_machine()
    if not offline:
        yield from check_weights()
    if forms:
        yield from check_forms()


def lines_of(finding: Finding, width: int) -> List[str]:
    """The lines on the screen."""
    colours = {OK: '32', NOTE: '33', PROBLEM: '31'}
    mark = f'{finding.level:<7}'
    if sys.stdout.isatty():
        mark = f'\033[{colours[finding.level]}m{mark}\033[0m'
    lines = [f'{mark}  {finding.name:<{width}}  {finding.text}']
    if finding.fix:
        lines.append(f'{"":7}  {"":{width}}  fix: {finding.fix}')
    return lines


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    problems = 0
    for finding in findings(args.offline, args.forms):
        print('\n'.join(lines_of(finding, 22)), flush=True)
        problems += finding.level == PROBLEM
    print(f'{problems} problem{"s" * (problems != 1)}' if problems else 'no problems')
    sys.exit(1 if problems else 0)


if __name__ == '__main__':
    main()
