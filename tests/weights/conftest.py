"""What the tests of weights share."""
import hashlib

import pytest
import torch


@pytest.fixture
def named_by_content():
    """Write a checkpoint whose name ends in its sha256; its path."""

    def write(folder, stem='weights', suffix='.pth'):
        path = folder / f'{stem}{suffix}'
        torch.save(dict(weight=torch.ones(2)), path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        return path.rename(folder / f'{stem}-{digest}{suffix}')

    return write
