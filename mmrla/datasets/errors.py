"""Errors of data that name the file."""
from typing import Any, Callable, List, Sequence

from torch.utils.data import DataLoader, Dataset


class DataError(ValueError):
    """Data that cannot be used; the message names the file and the reason."""


class NamedItems:
    """Load the samples of a batch; whatever goes wrong names the image.

    torch asks a data set for a whole batch under the name ``__getitems__``.

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
            return self.dataset[index]
        except DataError:
            raise
        except Exception as error:  # decoders and transforms raise nearly anything
            raise DataError(f'{_name(self.dataset, index)} cannot be used ({reason(error)}); '
                            'tools/check_dataset.py finds all such files') from error


def name_errors(loader: DataLoader) -> None:
    """Let whatever a loader cannot load be named."""
    if not hasattr(loader.dataset, '__getitems__'):
        loader.dataset.__getitems__ = NamedItems(loader.dataset)


def _name(dataset: Dataset, index: int) -> str:
    try:
        return f'image {dataset.get_data_info(index)["img_path"]}'
    except Exception:  # a data set of another kind
        return f'sample {index} of {type(dataset).__name__}'


def reason(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f'{type(error).__name__}: {lines[0]}' if lines else type(error).__name__


def named_full_init(full_init: Callable, dataset: Any) -> None:
    """A data set's ``full_init``, whose every error names the annotation file."""
    try:
        full_init(dataset)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # any content of a file ends here
        place = getattr(dataset, 'ann_file', '') or getattr(dataset, 'data_root', '')
        if isinstance(error, FileNotFoundError):
            raise DataError(f'{error.filename or place} does not exist; '
                            'set data_root and ann_file of the data set') from error
        raise DataError(f'annotations {place} cannot be used ({reason(error)}); '
                        'tools/check_dataset.py says what is wrong') from error
