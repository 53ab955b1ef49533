"""``import mmrla`` with missing, mixed and incomplete packages, in folders that stand for them."""
import subprocess
import sys
import warnings

import pytest

from mmrla import distributions
from support import REPO


@pytest.fixture
def import_with(tmp_path):
    """Import mmrla in a process that has these packages and no others."""
    def run(packages=(), versions=()):
        for name in packages:
            (tmp_path / name).mkdir()
            (tmp_path / name / '__init__.py').touch()
        for name, number in dict(versions).items():
            folder = tmp_path / f'{name.replace("-", "_")}-{number}.dist-info'
            folder.mkdir()
            (folder / 'METADATA').write_text(
                f'Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n')
        code = f'import sys; sys.path[:0] = {[str(REPO), str(tmp_path)]}; import mmrla'
        return subprocess.run([sys.executable, '-I', '-S', '-c', code], capture_output=True,
                              text=True).stderr
    return run


@pytest.mark.parametrize('packages, missing', [
    ((), 'mmengine and mmcv, which are'), (('mmengine',), 'mmcv, which is'),
    (('mmcv',), 'mmengine, which is')])
def test_a_missing_package_is_named_with_both_ways_to_install_it(import_with, packages, missing):
    last = import_with(packages).strip().splitlines()[-1]
    assert last.startswith(f'ImportError: mmrla needs {missing} not installed; ')
    assert 'tools/setup_env.py' in last and '--stack onedl' in last


def test_a_folder_without_a_module_is_no_package(import_with, tmp_path):
    (tmp_path / 'mmcv').mkdir()
    assert 'mmrla needs mmcv' in import_with(['mmengine'])


@pytest.mark.parametrize('package', distributions.DISTRIBUTIONS)
def test_two_stacks_over_each_other_are_refused(import_with, package):
    first, second = distributions.DISTRIBUTIONS[package]
    last = import_with(['mmengine', 'mmcv'], {first: '1.0', second: '2.0'}).strip().splitlines()[-1]
    assert last.startswith(f'ImportError: {first} 1.0 and {second} 2.0 are both installed')
    assert f'pip uninstall -y {first} {second}' in last


def test_an_mmcv_without_operators_is_noticed(import_with):
    output = import_with(['mmengine', 'mmcv'], {'onedl-mmcv': '2.3.6'})
    assert 'mmcv is installed without its compiled operators' in output


def test_an_mmcv_with_operators_is_not_mentioned(import_with, tmp_path):
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv/__init__.py').touch()
    (tmp_path / 'mmcv/_ext.so').touch()
    assert 'compiled operators' not in import_with(['mmengine'], {'mmcv': '2.1.0'})


def test_mmcv_lite_is_a_choice(import_with):
    assert 'compiled operators' not in import_with(['mmengine', 'mmcv'], {'mmcv-lite': '2.1.0'})


def test_nothing_is_wrong_here():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        distributions.check()
