"""Reading files: weights only, and one clear line for a bad file."""

import pytest
import torch
from safetensors.torch import save_file

from mmrla.weights import load_checkpoint, reading
from mmrla.weights.errors import CheckpointError
from mmrla.weights.reading import source_of


@pytest.mark.parametrize('load', [load_checkpoint, reading.read_local])
def test_a_checkpoint_that_carries_code_is_refused(malicious, load):
    path, trace = malicious
    with pytest.raises(CheckpointError) as error:
        load(str(path))
    assert str(path) in str(error.value) and 'code' in str(error.value)
    assert 'weights_only' not in str(error.value), 'this advises to run the code'
    assert not trace.exists()


@pytest.mark.parametrize('content', [b'', b'hello, I am a text file', bytes(range(256))])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / 'not_a_checkpoint.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match='cannot be read') as error:
        reading.read_local(str(path))
    assert str(path) in str(error.value)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / 'truncated.pth'
    torch.save(dict(weight=torch.randn(1000)), path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match='truncated.pth cannot be read'):
        reading.read_local(str(path))


@pytest.mark.parametrize('name, reason', [('missing.pth', 'does not exist'), ('', 'not a file')])
def test_a_path_without_a_file_is_named(tmp_path, name, reason):
    with pytest.raises(CheckpointError, match=reason):
        reading.read_local(str(tmp_path / name))


def test_safetensors_are_known_by_their_content(tmp_path):
    save_file(dict(weight=torch.ones(2)), tmp_path / 'a.bin', metadata=dict(modules='foreign'))
    loaded = load_checkpoint(
        str(tmp_path / 'a.bin'), lambda storage, location: storage)
    assert torch.equal(loaded['state_dict']['weight'], torch.ones(2))


def test_the_name_of_the_file_is_not_saved_again(tmp_path):
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / 'first.pth')
    loaded = load_checkpoint(str(tmp_path / 'first.pth'))
    assert source_of(loaded) == str(tmp_path / 'first.pth')
    torch.save(loaded, tmp_path / 'second.pth')
    assert b'first.pth' not in (tmp_path / 'second.pth').read_bytes()
    assert torch.load(tmp_path / 'second.pth')._metadata == torch.nn.Linear(
        1, 1).state_dict()._metadata


def test_a_file_is_compared_with_the_sha256_in_its_name(tmp_path, named_by_content):
    path = named_by_content(tmp_path)
    assert torch.equal(reading.read_local(str(path))['weight'], torch.ones(2))
    wrong = path.rename(tmp_path / 'weights-0123abcd.pth')
    with pytest.raises(CheckpointError, match='its name says 0123abcd') as error:
        reading.read_local(str(wrong))
    assert str(wrong) in str(error.value)
    archive = wrong.rename(tmp_path / 'weights-0123abcd.pth.tar')
    with pytest.raises(CheckpointError, match='its name says 0123abcd'):
        reading.read_local(str(archive))
    dated = archive.rename(tmp_path / 'weights-20240131.pth')
    assert 'weight' in reading.read_local(str(dated)), 'a date is not a sha256'


@pytest.mark.parametrize('content, text', [
    ([1, 2], 'holds a list'), (torch.ones(2), 'holds a Tensor'), ('text', 'holds a str'),
    ({1: torch.ones(2)}, 'holds no weights'), (dict(state_dict=None), 'holds no weights')])
def test_a_checkpoint_that_is_no_dict_of_weights_is_named(tmp_path, content, text):
    torch.save(content, tmp_path / 'odd.pth')
    with pytest.raises(CheckpointError, match=f'odd.pth {text}'):
        load_checkpoint(str(tmp_path / 'odd.pth'))
