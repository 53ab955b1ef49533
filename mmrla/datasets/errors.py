"""Errors of data that name the file."""
import contextlib
import os
import stat
import traceback
from typing import Any, Iterator, List, Optional, Sequence

from mmengine.dataset import BaseDataset
from torch.utils.data import DataLoader, Dataset


class DataError(ValueError):
    """Data cannot be used. The message names the file and the reason."""


# No image of a data set is larger; a sparse file or a device can be.
MAX_IMAGE_BYTES = 2**29


def printable(text: str) -> str:
    """Text in one line, with escapes for what a terminal would act on."""
    return ''.join(char if char.isprintable() else char.encode('unicode_escape').decode()
                   for char in text)


def check_image_file(path: str) -> None:
    """Raise if a path is no plain file of a size that can be read.

    Opening a pipe waits for ever, and a device has no end. Whether the file exists is left
    to the code that reads it.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f'image {printable(path)} is not a file')
    if found.st_size > MAX_IMAGE_BYTES:
        raise DataError(f'image {printable(path)} has {found.st_size / 2**20:.0f} MB; up to '
                        f'{MAX_IMAGE_BYTES / 2**20:.0f} MB are read')


class NamedItems:
    """Load the samples of a batch; an error names the image.

    torch loads a whole batch through the method ``__getitems__`` of a data set.

    Args:
        dataset: The data set.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __call__(self, batch: Sequence[int]) -> List[Any]:
        """The samples of a batch."""
        return [self.load(index) for index in batch]

    def load(self, index: int) -> Any:
        """One sample."""
        try:
            path = _image_path(self.dataset, index)
            if path is not None:
                check_image_file(path)
            return self.dataset[index]
        except DataError:
            raise
        except Exception as error:  # decoders and transforms raise nearly anything
            raise DataError(f'{_name(self.dataset, index)} cannot be used ({reason(error)}); '
                            'tools/check_dataset.py finds all such files') from error


def name_item_errors(loader: DataLoader) -> None:
    """Let the errors of a loader name the image."""
    if not hasattr(loader.dataset, '__getitems__'):
        loader.dataset.__getitems__ = NamedItems(loader.dataset)


def _name(dataset: Dataset, index: int) -> str:
    path = _image_path(dataset, index)
    return f'sample {index} of {type(dataset).__name__}' if path is None else f'image {path}'


def _image_path(dataset: Dataset, index: int) -> Optional[str]:
    """The path of an image; None for other kinds of data sets and for object storage."""
    try:
        path = str(dataset.get_data_info(index)['img_path'])
    except Exception:  # another kind of data set
        return None
    return None if '://' in path else path


def reason(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f'{type(error).__name__}: {lines[0]}' if lines else type(error).__name__


@contextlib.contextmanager
def name_annotation_errors() -> Iterator[None]:
    """Let the errors of reading annotations name the annotation file.

    mmengine, mmdet and pycocotools raise whatever they meet first: a KeyError for a
    key, a JSONDecodeError for a line.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # annotation files can contain anything
        dataset = _failed_dataset(error)
        if dataset is None:
            raise
        place = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_root', '')
        if isinstance(error, FileNotFoundError):
            raise DataError(f'{error.filename or place} does not exist; '
                            'set data_root and ann_file of the data set') from error
        raise DataError(f'annotations {place} cannot be used ({reason(error)}); '
                        'tools/check_dataset.py says what is wrong') from error


def _failed_dataset(error: Exception) -> Optional[BaseDataset]:
    """The data set whose ``full_init`` raised an error; None if none did."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get('self')
        if frame.f_code.co_name == 'full_init' and isinstance(owner, BaseDataset):
            found = owner
    return found
