"""The checks before the runner is built."""
import pytest

from mmrla.commands.runner import make_work_dir
from mmrla.weights.writing import SaveError


def test_a_work_dir_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SaveError, match=f'{tmp_path}/file/run'):
        make_work_dir(str(tmp_path / 'file/run'))


def test_a_work_dir_is_created_with_its_parents(tmp_path):
    make_work_dir(str(tmp_path / 'a/b'))
    make_work_dir(str(tmp_path / 'a/b'))
    assert (tmp_path / 'a/b').is_dir()
