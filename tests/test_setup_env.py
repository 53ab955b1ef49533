"""The script that sets up the environment."""
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from support import ONEDL, REPO, load_tool


@pytest.fixture
def part(monkeypatch):
    """The function that imports a module of tools/dev/envsetup."""
    monkeypatch.syspath_prepend(str(REPO / 'tools/dev'))
    return lambda name: import_module(f'envsetup.{name}')


@pytest.fixture
def environment(part):
    return load_tool('dev/environment')


@pytest.fixture
def stack(part):
    """The stack that is installed here."""
    return part('stacks').STACKS['onedl' if ONEDL else 'openmmlab']


def test_the_operators_of_mmcv_are_compiled():
    import torch
    from mmcv.ops import nms
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    assert kept.tolist() == [0, 2]
    assert Path(importlib.util.find_spec('mmcv._ext').origin).suffix == '.so'


# The environment


def test_an_active_environment_that_satisfies_the_requirements_is_used(environment, monkeypatch):
    prefix = Path(sys.prefix)
    monkeypatch.setenv('VIRTUAL_ENV', str(prefix))
    accepted = list(environment.STACKS.values())
    venv = environment.Venv(Path('/nonexistent/.venv'), accepted[0])
    python, reason = environment.environment_python(venv, True, accepted)
    assert (python, reason) == (prefix / 'bin/python', '')


def test_an_active_environment_with_the_other_stack_is_not_used(environment, stack, monkeypatch):
    other = next(item for item in environment.STACKS.values() if item != stack)
    monkeypatch.setenv('VIRTUAL_ENV', sys.prefix)
    venv = environment.Venv(Path('/nonexistent/.venv'), other)
    python, reason = environment.environment_python(venv, True, [other])
    assert python == venv.python and 'does not exist' in reason


def test_the_stacks_have_folders_of_their_own(part):
    folders = [stack.folder for stack in part('stacks').STACKS.values()]
    assert len(set(folders)) == len(folders)
    ignored = subprocess.run(['git', 'check-ignore', *folders], cwd=REPO, text=True,
                             capture_output=True)
    if ignored.returncode != 128:  # not a repository
        assert ignored.stdout.split() == folders


def test_a_stack_is_not_installed_over_the_other(environment, stack):
    """With --venv, both stacks may be given the same folder."""
    other = next(item for item in environment.STACKS.values() if item != stack)
    venv = environment.Venv(Path(sys.prefix), other)
    assert environment.stamp_value(stack) != environment.stamp_value(other)
    with pytest.raises(SystemExit, match=f'has {stack.mmcv}, .* --venv FOLDER'):
        environment.check_other_stacks(venv)
    environment.check_other_stacks(environment.Venv(Path(sys.prefix), stack))


def test_an_unmet_requirement_is_named(part, tmp_path):
    unmet, file = part('venv').unmet, tmp_path / 'runtime.txt'
    file.write_text('# a comment\nno-such-package>=1.0\n')
    assert 'no-such-package' in unmet(Path(sys.executable), [file])
    file.write_text('torch>=99\n')
    assert 'torch>=99 is needed' in unmet(Path(sys.executable), [file])


def test_an_environment_without_its_interpreter_is_not_used(part, tmp_path):
    assert str(tmp_path / 'python') in part('venv').unmet(tmp_path / 'python', [])


@pytest.mark.parametrize('name', ['openmmlab', 'onedl'])
def test_every_direct_requirement_is_pinned(part, name):
    stacks = part('stacks')
    stack = stacks.STACKS[name]
    pins = {pin.lower().replace('_', '-') for pin in stack.pins()}
    for path in (*stack.requirement_files(), stacks.REQUIREMENTS / 'build.txt'):
        for line in path.read_text().splitlines():
            if line and not line.startswith('#'):
                package = line.split('<')[0].split('>')[0].strip().lower()
                assert package in pins, f'{package} of {path.name} has no pin'


# The launcher


@pytest.fixture
def launcher():
    return load_tool('setup_env')


def interpreter(path, text):
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)


def test_an_unsupported_python_restarts_with_a_supported_one(launcher, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, 'PYTHONS', ((9, 7), (9, 8)))
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(SystemExit, match='python9.8, python9.7 starts'):
        launcher.main()
    interpreter(tmp_path / 'python9.7', 'echo 9.7')
    called = []
    monkeypatch.setattr(launcher.os, 'execvp', lambda path, words: called.append(path))
    launcher.main()
    assert called == ['python9.7']


def test_an_interpreter_that_does_not_start_is_not_chosen(launcher, tmp_path, monkeypatch):
    interpreter(tmp_path / 'python9.8', 'echo "pyenv: python9.8: command not found" >&2; exit 127')
    interpreter(tmp_path / 'python9.7', 'echo 3.5')
    monkeypatch.setattr(launcher, 'PYTHONS', ((9, 7), (9, 8)))
    monkeypatch.setenv('PATH', str(tmp_path))
    assert launcher.fitting_python() is None


@pytest.mark.parametrize('python', sorted(Path.home().glob('.pyenv/versions/*/bin/python')),
                         ids=lambda path: path.parts[-3])
def test_every_version_of_python_can_parse_the_launcher(python):
    script = str(REPO / 'tools/setup_env.py')
    result = subprocess.run([python, '-c', f'compile(open({script!r}).read(), "x", "exec")'],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-500:]


def test_all_places_name_the_same_pythons(launcher):
    from mmrla.commands import doctor
    assert doctor.PYTHONS == launcher.PYTHONS
    classifiers = (REPO / 'setup.py').read_text()
    for major, minor in launcher.PYTHONS:
        assert f'Programming Language :: Python :: {major}.{minor}' in classifiers
    assert f"python_requires='>={'.'.join(map(str, launcher.PYTHONS[0]))}'" in classifiers


# The build of mmcv


@pytest.mark.parametrize('command', [['ccache', 'c++'], ['c++']])
def test_the_compiler_command_may_have_several_words(part, monkeypatch, command):
    monkeypatch.setenv('CXX', ' '.join(command))
    assert part('mmcv_build').compiler() == command


def test_a_missing_compiler_is_explained(environment, monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(SystemExit) as error:
        environment.check_tools()
    assert 'apt-get install g++' in str(error.value)


SETUP_OF_MMCV = """\
def get_version():
    version_file = 'version.py'
    with open(version_file, encoding='utf-8') as f:
        exec(compile(f.read(), version_file, 'exec'))
    return locals()['__version__']


print(get_version())
"""


def test_the_version_of_mmcv_can_be_read_on_python_3_13(part, tmp_path):
    script = tmp_path / 'setup.py'
    (tmp_path / 'version.py').write_text("__version__ = '2.1.0'\n")
    script.write_text(SETUP_OF_MMCV)
    part('mmcv_build').correct_script(script, '-std=c++17')
    assert 'locals()' not in script.read_text()
    found = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout == '2.1.0\n', found.stderr


@pytest.mark.parametrize('header, flag', [
    ('#error C++17 or later compatible compiler is required to use ATen.', '-std=c++17'),
    ('#error C++20 or later compatible compiler is required to use ATen.', '-std=c++20'),
    ('', '-std=c++17')])
def test_mmcv_is_compiled_with_the_standard_that_torch_needs(part, tmp_path, header, flag):
    build = part('mmcv_build')
    (tmp_path / 'ATen').mkdir()
    (tmp_path / 'ATen/ATen.h').write_text(header)
    script = tmp_path / 'setup.py'
    script.write_text("cxx = ['-Wall', '-std=c++17']\n")
    build.correct_script(script, build.standard_flag(['/nonexistent', str(tmp_path)]))
    assert script.read_text() == f"cxx = ['-Wall', '{flag}']\n"


@pytest.fixture
def venv(part, stack, tmp_path, monkeypatch):
    """The environment of the tests, whose pip finds packages in one folder only."""
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path))
    venv = part('venv').Venv(tmp_path, stack)
    venv.python = Path(sys.executable)
    return venv


def test_sources_whose_script_fails_are_unpacked(part, venv, tmp_path):
    """pip runs setup.py when it downloads a source distribution. This one always fails."""
    name = venv.stack.mmcv
    packed = f'{name.replace("-", "_")}-2.1.0'
    (tmp_path / packed).mkdir()
    (tmp_path / packed / 'version.py').write_text("__version__ = '2.1.0'\n")
    (tmp_path / packed / 'setup.py').write_text(f"{SETUP_OF_MMCV}\nraise KeyError('version')")
    subprocess.run(['tar', '-C', tmp_path, '-czf', tmp_path / f'{packed}.tar.gz', packed],
                   check=True)
    folder = tmp_path / 'build'
    folder.mkdir()
    sources = part('mmcv_build').unpacked_sources(venv, '2.1.0', folder)
    assert 'KeyError' in venv.log.read_text(), 'setup.py did not run'
    assert (sources / 'setup.py').exists()
    assert sources.parent == folder and not (folder / 'unpacking').exists()
    (tmp_path / f'{packed}.tar.gz').unlink()
    assert part('mmcv_build').unpacked_sources(venv, '2.1.0', folder) == sources, 'not kept'


def test_sources_that_are_not_found_stop_the_set_up(part, venv, tmp_path):
    (tmp_path / 'build').mkdir()
    with pytest.raises(SystemExit, match='No matching distribution found'):
        part('mmcv_build').unpacked_sources(venv, '2.1.0', tmp_path / 'build')


def test_an_estimate_comes_after_a_tenth_of_the_files(part):
    text = part('venv').progress_text
    assert text(3, 100, 30) == '3 of 100 files compiled, 30 s'
    assert text(50, 100, 300) == '50 of 100 files compiled, 5 min; about 5 min left'


# CUDA


@pytest.fixture
def facts(part, tmp_path, monkeypatch):
    """A machine without a GPU, with a toolkit that has no header of cuBLAS, and nvidia packages."""
    for name in ('MMRLA_CPU_OPS', 'FORCE_CUDA', 'TORCH_CUDA_ARCH_LIST'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')
    home = tmp_path / 'cuda'
    for folder in ('cuda/bin', 'cuda/include', 'nvidia/cu13/include', 'nvidia/cu13/lib'):
        (tmp_path / folder).mkdir(parents=True)
    interpreter(home / 'bin/nvcc', f'''case "$1" in
--version) echo "Cuda compilation tools, release 13.0, V13.0.88";;
--dryrun) echo '#$ TOP={home}/bin/..' >&2;;
esac''')
    (tmp_path / 'nvidia/cu13/lib/libcudart.so.13').touch()
    return part('cuda').Facts('2.13.0', '13.0', str(home), [], ['sm_75', 'sm_80', 'sm_120'],
                              [str(tmp_path / 'nvidia')])


@pytest.mark.parametrize('capabilities, variables, wanted', [
    ([], {}, False), ([[8, 0]], {}, True), ([], dict(FORCE_CUDA='1'), True),
    ([[8, 0]], dict(MMRLA_CPU_OPS='1'), False)])
def test_when_cuda_is_compiled(part, facts, monkeypatch, capabilities, variables, wanted):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert part('cuda').wants_cuda(replace(facts, capabilities=capabilities)) == wanted
    assert (os.environ['CUDA_VISIBLE_DEVICES'] == '') == ('MMRLA_CPU_OPS' in variables)


@pytest.mark.parametrize('change, text', [
    (dict(cuda=None), 'torch 2.13.0 is built for the CPU'),
    (dict(home=None), 'there is no CUDA toolkit'),
    (dict(cuda='12.8'), 'version 13.0, but torch is built for CUDA 12.8')])
def test_a_toolkit_that_does_not_fit_is_explained_in_one_line(part, facts, change, text):
    with pytest.raises(SystemExit, match=text) as error:
        part('cuda').check_toolkit(replace(facts, **change))
    assert '\n' not in str(error.value) and 'MMRLA_CPU_OPS=1' in str(error.value)


def test_the_toolkit_is_found_through_a_script_in_another_folder(part, facts, tmp_path):
    (tmp_path / 'local/bin').mkdir(parents=True)
    interpreter(tmp_path / 'local/bin/nvcc', f'exec {facts.home}/bin/nvcc "$@"')
    other = replace(facts, home=str(tmp_path / 'local'))
    assert part('cuda').check_toolkit(other) == Path(facts.home)


def test_the_architectures_are_those_of_the_gpus(part, facts, monkeypatch):
    architectures = part('cuda').architectures
    assert architectures(facts) == '7.5+PTX'
    assert architectures(replace(facts, capabilities=[[9, 0], [8, 6], [9, 0]])) == '8.6;9.0'
    monkeypatch.setenv('TORCH_CUDA_ARCH_LIST', '8.0')
    assert architectures(replace(facts, capabilities=[[9, 0]])) == '8.0'


def test_headers_and_libraries_come_from_the_packages_if_the_toolkit_lacks_them(part, facts,
                                                                                tmp_path):
    cuda, home = part('cuda'), Path(facts.home)
    packages = tmp_path / 'nvidia/cu13'
    assert packages / 'include' in cuda.include_folders(facts, home)
    link = cuda.library_folder(facts, home, tmp_path) / 'libcudart.so'
    assert link.resolve() == packages / 'lib/libcudart.so.13'
    for name in cuda.HEADERS:
        (home / 'include' / name).touch()
    (home / 'lib64').mkdir()
    (home / 'lib64/libcudart.so').touch()
    assert packages / 'include' not in cuda.include_folders(facts, home)
    assert cuda.library_folder(facts, home, tmp_path) == home / 'lib64'


@pytest.mark.parametrize('message, text', [
    ('#error -- unsupported GNU version! gcc versions later than 15 are not supported!',
     'c\\+\\+ is too new'),
    ('fatal error: cusparse.h: No such file or directory', 'cusparse.h: No such file')])
def test_a_compiler_that_does_not_work_is_explained_in_one_line(part, facts, tmp_path, message,
                                                               text):
    interpreter(tmp_path / 'nvcc', f"echo 'a line' >&2; echo '{message}' >&2; exit 1")
    with pytest.raises(SystemExit, match=text) as error:
        part('cuda').check_compiler(tmp_path / 'nvcc', ['c++'], dict(os.environ), tmp_path)
    assert '\n' not in str(error.value)
