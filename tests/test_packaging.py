"""What is installed, and the script that installs it."""
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """A wheel, built from a copy so that the repository stays clean."""
    folder = tmp_path_factory.mktemp('wheel')
    tracked = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=REPO, text=True,
                             capture_output=True, check=True).stdout.splitlines()
    for name in tracked:
        if (REPO / name).is_file():
            (folder / 'source' / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, folder / 'source' / name)
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation',
                    '--wheel-dir', folder, folder / 'source'], check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob('*.whl')))


def test_a_wheel_carries_configs_tools_and_index_for_mim(wheel):
    names = set(wheel.namelist())
    for name in ('configs/faster_rcnn_rla_r50_fpn_1x.py', 'configs/_base_/backbones/rla_r50.py',
                 'tools/train.py', 'tools/dist_train.sh', 'model-index.yml'):
        assert f'mmrla/.mim/{name}' in names
    assert not [name for name in names if '__pycache__' in name or name.startswith('tests')]


def test_a_wheel_declares_what_it_needs(wheel):
    name = next(name for name in wheel.namelist() if name.endswith('METADATA'))
    metadata = wheel.read(name).decode()
    for extra in ('detection', 'pretraining', 'development', 'mim'):
        assert f'Provides-Extra: {extra}' in metadata
    assert 'Requires-Dist: mmengine' in metadata
    assert 'Requires-Dist: mmdet<3.4,>=3.3.0; extra == "detection"' in metadata


@pytest.fixture
def setup_env():
    spec = importlib.util.spec_from_file_location('setup_env', REPO / 'tools/setup_env.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_installed_operators_are_compiled_ones():
    import torch
    from mmcv.ops import nms
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    assert kept.tolist() == [0, 2]
    assert Path(importlib.util.find_spec('mmcv._ext').origin).suffix == '.so'


def test_an_environment_that_satisfies_the_requirements_is_used(setup_env, monkeypatch):
    prefix = Path(sys.prefix)
    monkeypatch.setenv('VIRTUAL_ENV', str(prefix))
    monkeypatch.setattr(setup_env, 'VENV', Path('/nonexistent/.venv'))
    python, reason = setup_env.environment_python()
    assert (python, reason) == (prefix / 'bin/python', '')


def test_what_an_environment_lacks_is_named(setup_env, tmp_path, monkeypatch):
    file = tmp_path / 'runtime.txt'
    file.write_text('# a comment\nno-such-package>=1.0\n')
    monkeypatch.setattr(setup_env, 'requirement_files', lambda: [file])
    assert 'no-such-package' in setup_env.unmet(Path(sys.executable))
    file.write_text('torch>=99\n')
    assert 'torch>=99 is needed' in setup_env.unmet(Path(sys.executable))


def test_a_missing_compiler_is_explained(setup_env, monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(SystemExit) as error:
        setup_env.check_tools()
    assert 'apt-get install g++' in str(error.value)


@pytest.mark.parametrize('facts, allowed, text', [
    ('True None 13.0', '0', 'no CUDA toolkit'), ('True None 13.0', '1', ''),
    ('True /usr/local/cuda 13.0', '0', ''), ('False None None', '0', '')])
def test_a_gpu_without_its_compiler_is_explained(setup_env, monkeypatch, facts, allowed, text):
    monkeypatch.setattr(setup_env, 'output_of', lambda code: facts)
    monkeypatch.setenv('MMRLA_CPU_OPS', allowed)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')
    if text:
        with pytest.raises(SystemExit, match=text):
            setup_env.check_cuda()
    else:
        setup_env.check_cuda()
    hidden = facts.startswith('True None') and allowed == '1'
    assert (os.environ['CUDA_VISIBLE_DEVICES'] == '') == hidden


def test_every_direct_requirement_is_pinned(setup_env):
    pins = setup_env.PINS.read_text().lower().replace('_', '-')
    for path in (*setup_env.requirement_files(), setup_env.REQUIREMENTS / 'build.txt'):
        for line in path.read_text().splitlines():
            if line and not line.startswith('#'):
                name = line.split('<')[0].split('>')[0].strip().lower()
                assert f'\n{name}==' in pins, f'{name} of {path.name} has no pin'
