"""Errors that name the image or annotation file they come from."""
from typing import Any, Callable, List, Sequence

from torch.utils.data import DataLoader, Dataset


class DataError(ValueError):
    """Data cannot be used; the message names the file and the reason."""


class NamedItems:
    """Load the samples of a batch; errors name the image.

    torch's data loader calls ``dataset.__getitems__`` with the indices of a batch.

    Args:
        dataset: The data set.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __call__(self, batch: Sequence[int]) -> List[Any]:
        """Load the samples of a batch."""
        return [self.load(index) for index in batch]

    def load(self, index: int) -> Any:
        """Load one sample."""
        try:
            return self.dataset[index]
        except DataError:
            raise
        except Exception as error:  # decoders and transforms raise many types
            raise DataError(f'{_name(self.dataset, index)} cannot be used ({reason(error)}). '
                            'tools/check_dataset.py lists all such files') from error


def name_errors(loader: DataLoader) -> None:
    """Let the errors of a data loader name the image."""
    if not hasattr(loader.dataset, '__getitems__'):
        loader.dataset.__getitems__ = NamedItems(loader.dataset)


def _name(dataset: Dataset, index: int) -> str:
    try:
        return f'image {dataset.get_data_info(index)["img_path"]}'
    except Exception:  # not a data set of mmengine
        return f'sample {index} of {type(dataset).__name__}'


def reason(error: Exception) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f'{type(error).__name__}: {lines[0]}' if lines else type(error).__name__


def named_full_init(full_init: Callable, dataset: Any) -> None:
    """Call ``full_init`` of a data set; errors name the annotation file."""
    try:
        full_init(dataset)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise any type
        place = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_root', '')
        if isinstance(error, FileNotFoundError):
            raise DataError(f'{error.filename or place} does not exist. '
                            'Correct data_root and ann_file of the data set') from error
        raise DataError(f'annotations {place} cannot be used ({reason(error)}). '
                        'tools/check_dataset.py lists the problems') from error
