"""The parts of a data set: what each one holds, and how one is split in two."""
import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from PIL import Image

from mmrla.datasets.errors import DataError
from mmrla.weights.writing import write_file

TRAIN, VAL, TEST = 'train', 'val', 'test'
# The names that folders and files have for the parts of a data set.
NAMES = {'train': TRAIN, 'training': TRAIN, 'trainval': TRAIN, 'val': VAL, 'valid': VAL,
         'validation': VAL, 'dev': VAL, 'test': TEST, 'testing': TEST}
VAL_SHARE = 0.2
# The EXIF tag of an image's orientation, and its values that swap width and height.
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)


class Split(NamedTuple):
    """One part of a data set.

    Attributes:
        content: COCO-format ``images``, ``annotations`` and ``categories``.
        images: The folder that the file names are relative to.
        path: The annotation file; None if the content is not in a COCO-format file.
    """
    content: Dict[str, List[dict]]
    images: Path
    path: Optional[Path] = None


class Dataset(NamedTuple):
    """A data set as it was found.

    Attributes:
        format: Such as ``COCO`` or ``YOLO``.
        root: The folder.
        classes: Names of the classes, by label.
        splits: By name, ``train`` and possibly ``val`` and ``test``.
        notes: What was found strange while it was read, for people.
    """
    format: str
    root: Path
    classes: Tuple[str, ...]
    splits: Dict[str, Split]
    notes: Tuple[str, ...] = ()


def split_name(text: str) -> Optional[str]:
    """The part of a data set that a name such as ``instances_train2017`` stands for."""
    words = ''.join(c if c.isalpha() else ' ' for c in text.lower()).split()
    return next((NAMES[word] for word in reversed(words) if word in NAMES), None)


def image_size(path: Path) -> Tuple[int, int]:
    """(width, height) of an image as decoders return it, turned by its EXIF orientation."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            is_turned = image.getexif().get(ORIENTATION) in TURNED
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f'image {path} cannot be read; remove or replace it') from error
    return (height, width) if is_turned else (width, height)


class CocoContent:
    """Collects images and boxes as COCO-format content.

    Args:
        classes: Names of the classes; their ids are counted from 1.
    """

    def __init__(self, classes: Tuple[str, ...]) -> None:
        self.images: List[dict] = []
        self.annotations: List[dict] = []
        self.categories = [dict(id=number, name=name) for number, name in enumerate(classes, 1)]

    def add_image(self, name: str, size: Tuple[int, int]) -> int:
        """Add an image and return its id."""
        self.images.append(dict(id=len(self.images) + 1, file_name=name, width=size[0],
                                height=size[1]))
        return len(self.images)

    def add_box(self, image_id: int, label: int, box: List[float],
                polygon: Optional[List[float]] = None, difficult: bool = False) -> None:
        """Add an object.

        Args:
            image_id: Of its image.
            label: Of its class, from 0.
            box: x, y, width and height in pixels.
            polygon: Its outline, x and y in turn.
            difficult: Objects that neither count nor are trained on, as VOC marks them.
        """
        box = [round(float(value), 2) for value in box]
        self.annotations.append(dict(
            id=len(self.annotations) + 1, image_id=image_id, category_id=label + 1, bbox=box,
            area=round(box[2] * box[3], 2), iscrowd=int(difficult),
            segmentation=[[round(float(value), 2) for value in polygon]] if polygon else []))

    def content(self) -> Dict[str, List[dict]]:
        """The content of the file."""
        return dict(images=self.images, annotations=self.annotations, categories=self.categories)


def split_off(split: Split, share: float = VAL_SHARE) -> Tuple[Split, Split]:
    """Split the images of one part in two, by a hash of their names.

    The same image is always in the same part, in whatever order the images come and
    however many are added later.

    Args:
        split: What to split.
        share: Of the images that are held out.

    Returns:
        tuple[Split, Split]: What is trained on, and what is held out.
    """
    images = sorted(split.content['images'], key=lambda image: hashlib.sha256(
        str(image['file_name']).encode()).hexdigest())
    count = max(1, round(share * len(images)))
    if len(images) < 2:
        raise DataError(f'{split.images} has {len(images)} image: at least 2 are needed, one to '
                        'train on and one to validate on')
    held_out = {image['id'] for image in images[:count]}
    return tuple(Split(_part(split.content, held_out, is_held_out), split.images)
                 for is_held_out in (False, True))


def _part(content: Dict[str, List[dict]], ids: set, inside: bool) -> Dict[str, Any]:
    return dict(
        images=[image for image in content['images'] if (image['id'] in ids) == inside],
        annotations=[item for item in content['annotations']
                     if (item['image_id'] in ids) == inside],
        categories=content['categories'])


def write_split(split: Split, path: Path) -> Split:
    """Write a part as a COCO-format file, and return it with its path."""
    text = json.dumps(split.content).encode()
    write_file(path, lambda file: file.write(text))
    return split._replace(path=path)
