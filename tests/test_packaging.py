"""The wheel."""
import csv
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

from mmrla import distributions
from mmrla.datasets import make_shapes
from support import REPO


@pytest.fixture(scope='module')
def wheel_file(tmp_path_factory):
    """The path of a wheel, built from a copy of the repository."""
    folder = tmp_path_factory.mktemp('wheel')
    shutil.copytree(REPO, folder / 'source', ignore=shutil.ignore_patterns(
        '.git', '.venv*', '.*_cache', 'data', 'work_dirs', 'build', '*.egg-info', '__pycache__'))
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
    stack = Path(sysconfig.get_path('purelib'))
    # With its own file setuptools provides distutils, which Python has no longer since 3.12.
    distutils = (stack / 'distutils-precedence.pth').read_text()
    (packages / 'stack.pth').write_text(f'{stack}\n{distutils}\n')
    hidden = ('PYTHONPATH', 'VIRTUAL_ENV', 'CONDA_PREFIX')
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    return dict(variables, VIRTUAL_ENV=str(environment), OMP_NUM_THREADS='1',
                PATH=f'{environment / "bin"}{os.pathsep}{os.environ["PATH"]}')


def test_the_wheel_contains_configs_tools_and_model_index(wheel):
    names = set(wheel.namelist())
    for name in ('tools/train.py', 'tools/dist_train.sh', 'model-index.yml'):
        assert f'mmrla/.mim/{name}' in names
    assert 'mmrla/zoo/.mim/configs/configs/_base_/backbones/rla_r50.py' in names
    assert not [name for name in names if 'setup_env' in name or '/tools/dev/' in name]
    assert not [name for name in names if '__pycache__' in name or name.startswith('tests')]


def test_mim_finds_each_config_of_the_wheel_once(wheel):
    """mim train looks for a file of this name in the whole package, and refuses two."""
    index = yaml.safe_load(wheel.read('mmrla/.mim/model-index.yml'))
    models = yaml.safe_load(wheel.read(f'mmrla/.mim/{index["Import"][0]}'))['Models']
    assert len(models) > 80
    found = Counter(Path(name).name for name in wheel.namelist())
    for model in models:
        assert os.path.normpath(f'mmrla/.mim/{model["Config"]}') in wheel.namelist()
        assert found[Path(model['Config']).name] == 1, model['Config']


def test_the_wheel_declares_its_requirements(wheel):
    name = next(name for name in wheel.namelist() if name.endswith('METADATA'))
    metadata = wheel.read(name).decode()
    for extra in ('openmmlab', 'onedl', 'development', 'mim'):
        assert f'Provides-Extra: {extra}' in metadata
    assert 'Requires-Dist: mmdet<3.4,>=3.3.0; extra == "openmmlab"' in metadata
    assert 'Requires-Dist: onedl-mmdetection<4.0,>=3.5.1; extra == "onedl"' in metadata
    without_extra = re.findall(r'^Requires-Dist: ([\w-]+)[^;\n]*$', metadata, re.M)
    assert 'torch' in without_extra
    assert not [name for name in without_extra if 'mm' in name], 'this chooses a stack'


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


def test_a_wheel_has_no_file_of_an_installed_distribution(wheel):
    """Neither of the stack nor of what the stack needs."""
    ours = {*wheel.namelist(), '../../../bin/mmrla'}
    others = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata['Name']
        if name != 'mmrla':
            record = csv.reader((distribution.read_text('RECORD') or '').splitlines())
            others.update({row[0]: name for row in record})
    assert len(others) > 10_000, 'the stack was not found'
    assert not {file: others[file] for file in ours & others.keys()}


def digests(folder):
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob('*') if path.is_file()}


def test_a_wheel_overwrites_no_file_of_the_stack(wheel_file, tmp_path):
    """In a copy of the stack that is installed here: OpenMMLab's or OneDL's."""
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path], check=True)
    packages = next(tmp_path.glob('lib/python*/site-packages'))
    for package in distributions.DISTRIBUTIONS:
        name, = distributions.found_versions(package)
        for file in importlib.metadata.files(name):
            if '..' not in file.parts and file.locate().is_file():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), packages / file)
    before = digests(packages)
    assert len(before) > 2000, 'the stack was not found'
    pip = [sys.executable, '-m', 'pip', '--python', tmp_path / 'bin/python']
    subprocess.run([*pip, 'install', '--no-deps', '--no-index', '--no-compile', wheel_file],
                   check=True, capture_output=True)
    after = digests(packages)
    changed = [path for path, digest in before.items() if after.get(path) != digest]
    assert not changed
    added = {path.parts[0] for path in after.keys() - before.keys()}
    assert {name for name in added if not name.endswith('.dist-info')} == {'mmrla', 'mmrla_cli.py'}
    subprocess.run([*pip, 'uninstall', '-y', 'mmrla'], check=True, capture_output=True)
    assert digests(packages) == before


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


def test_importing_mmrla_takes_little_time():
    code = ('import time, torch, mmengine.runner; start = time.process_time(); '
            'import mmrla; print(time.process_time() - start)')
    output = subprocess.run([sys.executable, '-c', code], cwd=REPO, text=True, check=True,
                            capture_output=True).stdout
    assert float(output) < 0.6  # 0.06 on an idle machine
