"""The names and contents of converted files."""
import hashlib

import pytest
import torch

from mmrla.commands import convert_weights
from mmrla.models import RLAResNet


@pytest.fixture
def source(tmp_path, randomise):
    path = tmp_path / 'source.pth'
    net = randomise(RLAResNet(18, base_channels=8, rla=None))
    torch.save(dict(state_dict=net.state_dict(), optimizer={}), path)
    return str(path)


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_the_file_has_the_name_that_was_asked_for(suffix, source, tmp_path, capsys):
    target = tmp_path / f'out/weights{suffix}'
    convert_weights.main([source, str(target)])
    assert list(target.parent.iterdir()) == [target]
    assert capsys.readouterr().out.splitlines()[-1] == str(target)


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_the_hash_of_the_content_is_appended_on_request(suffix, source, tmp_path):
    convert_weights.main([source, str(tmp_path / f'out/weights{suffix}'), '--hash-in-name'])
    path, = (tmp_path / 'out').iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    assert path.name == f'weights-{digest}{suffix}'


@pytest.mark.parametrize('name, words', [
    ('weights.txt', 'must end in .pth or .safetensors'),
    ('weights-0123abcd.pth', 'Choose another name, or use --hash-in-name')])
def test_a_wrong_name_is_refused(name, words, source, tmp_path, capsys):
    with pytest.raises(SystemExit):
        convert_weights.main([source, str(tmp_path / name)])
    assert words in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_a_target_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SystemExit, match=f'{tmp_path}/file/weights.pth cannot be written'):
        convert_weights.main([source, str(tmp_path / 'file/weights.pth')])
