"""The check of the annotation files of evaluators."""
import pytest
from mmengine.config import Config

from mmrla.datasets.errors import DataError
from mmrla.evaluation.annotations import check_annotation_files


@pytest.mark.parametrize('evaluator, key', [
    (dict(ann_file='none.json'), 'val_evaluator.ann_file'),
    ([dict(type='A'), dict(ann_file='none.json')], 'val_evaluator.1.ann_file')])
def test_a_missing_file_is_named_with_its_setting(evaluator, key):
    with pytest.raises(DataError) as found:
        check_annotation_files(Config(dict(val_evaluator=evaluator)), 'val_evaluator')
    message = str(found.value)
    assert message.startswith(f'{key}: annotation file none.json does not exist')
    assert f'--cfg-options {key}=PATH' in message


def test_existing_remote_and_absent_files_pass(tmp_path):
    (tmp_path / 'a.json').write_text('{}')
    for evaluator in (None, dict(type='Accuracy'), dict(ann_file=None),
                      dict(ann_file=str(tmp_path / 'a.json')), dict(ann_file='s3://a/b.json'),
                      dict(ann_file='b.json', backend_args=dict(backend='petrel'))):
        check_annotation_files(Config(dict(val_evaluator=evaluator)), 'val_evaluator')
