"""The wheel, and the script that sets up the environment."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from mmrla.datasets import make_shapes
from support import REPO, load_tool


@pytest.fixture(scope='module')
def wheel_file(tmp_path_factory):
    """The path of a wheel, built from a copy of the repository."""
    folder = tmp_path_factory.mktemp('wheel')
    shutil.copytree(REPO, folder / 'source', ignore=shutil.ignore_patterns(
        '.git', '.venv', '.*_cache', 'data', 'work_dirs', 'build', '*.egg-info', '__pycache__'))
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation',
                    '--wheel-dir', folder, folder / 'source'], check=True, capture_output=True)
    return next(folder.glob('*.whl'))


@pytest.fixture(scope='module')
def wheel(wheel_file):
    return zipfile.ZipFile(wheel_file)


@pytest.fixture(scope='module')
def installed(wheel_file, tmp_path_factory):
    """An environment with the wheel and the packages of this one; the variables to use it.

    The packages are found through a path. An editable install of mmrla is not found this way.
    """
    environment = tmp_path_factory.mktemp('environment')
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', environment], check=True)
    packages = next(environment.glob('lib/python*/site-packages'))
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-deps', '--no-index', '--target',
                    packages, wheel_file], check=True, capture_output=True)
    (packages / 'stack.pth').write_text(sysconfig.get_path('purelib') + '\n')
    hidden = ('PYTHONPATH', 'VIRTUAL_ENV', 'CONDA_PREFIX')
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    return dict(variables, VIRTUAL_ENV=str(environment), OMP_NUM_THREADS='1',
                PATH=f'{environment / "bin"}{os.pathsep}{os.environ["PATH"]}')


def test_the_wheel_contains_configs_tools_and_model_index(wheel):
    names = set(wheel.namelist())
    for name in ('configs/faster_rcnn_rla_r50_fpn_1x.py', 'configs/_base_/backbones/rla_r50.py',
                 'tools/train.py', 'tools/dist_train.sh', 'model-index.yml'):
        assert f'mmrla/.mim/{name}' in names
    assert 'mmrla/zoo/.mim/configs/configs/_base_/backbones/rla_r50.py' in names
    assert not [name for name in names if 'setup_env' in name or '/tools/dev/' in name]
    assert not [name for name in names if '__pycache__' in name or name.startswith('tests')]


def test_the_wheel_declares_its_requirements(wheel):
    name = next(name for name in wheel.namelist() if name.endswith('METADATA'))
    metadata = wheel.read(name).decode()
    for extra in ('detection', 'pretraining', 'development', 'mim'):
        assert f'Provides-Extra: {extra}' in metadata
    assert 'Requires-Dist: mmengine' in metadata
    assert 'Requires-Dist: mmdet<3.4,>=3.3.0; extra == "detection"' in metadata


# A detector that trains for seconds.
MINE = """\
_base_ = 'mmrla::configs/shapes/faster_rcnn_rla_r18_fpn.py'
model = dict(backbone=dict(base_channels=8), neck=dict(in_channels=[8, 16, 32, 64]))
train_cfg = dict(max_epochs=1, val_interval=1)
train_dataloader = dict(num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
"""


# Resumes and tests with the scripts of the wheel. One process, because importing torch and mmdet
# takes longer than either.
SCRIPTS = """\
import runpy, sys
tools = sys.argv[1]
for name, *words in (
        ('train.py', 'mine.py', '--resume', '--cfg-options', 'train_cfg.max_epochs=2'),
        ('test.py', 'mine.py', 'work_dirs/mine/epoch_2.pth')):
    sys.argv = [name, *words]
    runpy.run_path(f'{tools}/{name}', run_name='__main__')
"""


def test_a_wheel_trains_resumes_and_tests_from_an_empty_folder(installed, tmp_path):
    def run(*command):
        result = subprocess.run(command, cwd=tmp_path, env=installed, text=True,
                                capture_output=True, timeout=600)
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
        return result.stdout + result.stderr

    find = 'import importlib.util; print(importlib.util.find_spec("mmrla").origin)'
    package = Path(run('python', '-c', find).strip()).parent
    assert package.is_relative_to(installed['VIRTUAL_ENV'])
    make_shapes(tmp_path / 'data/shapes', train=8, val=2)
    (tmp_path / 'mine.py').write_text(MINE)
    # The launcher uses the interpreter of the active environment.
    run(package / '.mim/tools/dist_train.sh', 'mine.py', '1')
    log = run('python', '-c', SCRIPTS, package / '.mim/tools')
    assert re.search(r'resumed epoch: 1\b', log)
    assert {path.name for path in tmp_path.glob('work_dirs/mine/*.pth')} == {
        'epoch_1.pth', 'epoch_2.pth'}
    assert 'Epoch(test)' in log and 'coco/bbox_mAP' in log


def test_the_launcher_of_a_wheel_names_an_interpreter_without_mmrla(installed, tmp_path):
    other = tmp_path / 'python'
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    other.chmod(0o755)
    packages = next(Path(installed['VIRTUAL_ENV']).glob('lib/python*/site-packages'))
    result = subprocess.run(
        [packages / 'mmrla/.mim/tools/dist_train.sh', 'mine.py', '1'], text=True,
        capture_output=True, env=dict(installed, PATH=f'{tmp_path}{os.pathsep}/usr/bin:/bin'))
    assert result.returncode == 1
    assert result.stderr.strip().endswith(
        f'mmrla is not installed for {other}; activate the environment that has it')


@pytest.fixture
def setup_env():
    return load_tool('dev/environment')


def test_the_operators_of_mmcv_are_compiled():
    import torch
    from mmcv.ops import nms
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    assert kept.tolist() == [0, 2]
    assert Path(importlib.util.find_spec('mmcv._ext').origin).suffix == '.so'


def test_an_active_environment_that_satisfies_the_requirements_is_used(setup_env, monkeypatch):
    prefix = Path(sys.prefix)
    monkeypatch.setenv('VIRTUAL_ENV', str(prefix))
    monkeypatch.setattr(setup_env, 'VENV', Path('/nonexistent/.venv'))
    python, reason = setup_env.environment_python(development=True)
    assert (python, reason) == (prefix / 'bin/python', '')


def test_an_unmet_requirement_is_named(setup_env, tmp_path, monkeypatch):
    file = tmp_path / 'runtime.txt'
    file.write_text('# a comment\nno-such-package>=1.0\n')
    monkeypatch.setattr(setup_env, 'requirement_files', lambda development: [file])
    assert 'no-such-package' in setup_env.unmet(Path(sys.executable))
    file.write_text('torch>=99\n')
    assert 'torch>=99 is needed' in setup_env.unmet(Path(sys.executable))


def test_an_environment_without_its_interpreter_is_not_used(setup_env, tmp_path):
    assert str(tmp_path / 'python') in setup_env.unmet(tmp_path / 'python')


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


@pytest.mark.parametrize('command', [['ccache', 'c++'], ['c++']])
def test_the_compiler_command_may_have_several_words(setup_env, monkeypatch, command):
    monkeypatch.setenv('CXX', ' '.join(command))
    assert setup_env.compiler() == command


def test_a_missing_compiler_is_explained(setup_env, monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(SystemExit) as error:
        setup_env.check_tools()
    assert 'apt-get install g++' in str(error.value)


@pytest.mark.parametrize('facts, allowed, text', [
    ('True None 13.0', '0', 'no CUDA toolkit'), ('True None 13.0', '1', ''),
    ('True /usr/local/cuda 13.0', '0', ''), ('True /usr/local/cuda 13.0', '1', ''),
    ('False None None', '0', '')])
def test_a_gpu_without_a_cuda_toolkit_is_explained(setup_env, monkeypatch, facts, allowed, text):
    monkeypatch.setattr(setup_env, 'output_of', lambda code: facts)
    monkeypatch.setenv('MMRLA_CPU_OPS', allowed)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')
    if text:
        with pytest.raises(SystemExit, match=text):
            setup_env.check_cuda()
    else:
        setup_env.check_cuda()
    assert (os.environ['CUDA_VISIBLE_DEVICES'] == '') == (allowed == '1')


def test_every_direct_requirement_is_pinned(setup_env):
    pins = setup_env.PINS.read_text().lower().replace('_', '-')
    for path in (*setup_env.requirement_files(), setup_env.REQUIREMENTS / 'build.txt'):
        for line in path.read_text().splitlines():
            if line and not line.startswith('#'):
                name = line.split('<')[0].split('>')[0].strip().lower()
                assert f'\n{name}==' in pins, f'{name} of {path.name} has no pin'


def test_importing_mmrla_takes_little_time():
    code = ('import time, torch, mmengine.runner; start = time.process_time(); '
            'import mmrla; print(time.process_time() - start)')
    output = subprocess.run([sys.executable, '-c', code], cwd=REPO, text=True, check=True,
                            capture_output=True).stdout
    assert float(output) < 0.6  # 0.06 on an idle machine
