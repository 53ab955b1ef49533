"""Which format a folder has."""
from pathlib import Path

from mmrla.datasets.errors import DataError
from mmrla.datasets.folders import IMAGE_SUFFIXES

from . import coco, voc, yolo
from .splits import Dataset

FORMATS = ('COCO (one JSON file for each part)',
           'YOLO (data.yaml or classes.txt, and a text file for each image)',
           'Pascal VOC (an XML file for each image)')


def find_dataset(root: Path) -> Dataset:
    """Look at a folder and read its annotations.

    Args:
        root: A folder with a data set in one of ``FORMATS``.
    """
    if not root.is_dir():
        raise DataError(f'{root} is not a folder' if root.exists() else f'{root} does not exist')
    files = coco.find_files(root)
    if files:
        return coco.read(root, files)
    files = voc.find_files(root)
    if files:
        return voc.read(root, files)
    description = yolo.find_description(root)
    if description is not None:
        return yolo.read(root, description)
    raise DataError(_nothing(root))


def _nothing(root: Path) -> str:
    """What to do with a folder that has no annotations."""
    images = sum(path.suffix.lower() in IMAGE_SUFFIXES for path in root.rglob('*'))
    if not images:
        return f'{root} has neither images nor annotations. Known formats: {"; ".join(FORMATS)}'
    labels = [path for path in root.rglob('*.txt') if path.name not in ('README.txt',)]
    if labels:
        return (f'{root} has {images} images and text files such as {labels[0].name}, but no class '
                'names. For YOLO labels, add classes.txt with one name per line')
    return (f'{root} has {images} images but no boxes: a detector needs annotations. Known '
            f'formats: {"; ".join(FORMATS)}')
