"""Pascal VOC data sets: an XML file for each image."""
from pathlib import Path
from typing import Dict, List, NamedTuple
from xml.etree import ElementTree

from mmrla.datasets.errors import DataError
from mmrla.datasets.folders import IMAGE_SUFFIXES

from .splits import TRAIN, CocoContent, Dataset, Split, image_size, split_name


class Image(NamedTuple):
    """What an XML file says about its image.

    Attributes:
        path: Of the XML file.
        image: Of the image.
        objects: (class name, x1, y1, x2, y2, difficult) of each object.
    """
    path: Path
    image: Path
    objects: List[tuple]


def find_files(root: Path) -> List[Path]:
    """The XML files below a folder whose root element is ``annotation``."""
    paths = sorted(root.rglob('*.xml'))
    return paths if paths and _is_annotation(paths[0]) else []


def _is_annotation(path: Path) -> bool:
    try:
        return ElementTree.parse(path).getroot().tag == 'annotation'
    except ElementTree.ParseError:
        return False


def read(root: Path, paths: List[Path]) -> Dataset:
    """Read a Pascal VOC data set.

    Args:
        root: The folder of the data set.
        paths: The XML files.
    """
    images = {path.stem: path for path in root.rglob('*')
              if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()}
    parsed = [_parse(path, images) for path in paths]
    names = sorted({item[0] for image in parsed for item in image.objects})
    if not names:
        raise DataError(f'the {len(paths)} XML files below {root} have no objects')
    splits = {name: _split(root, part, names) for name, part in _parts(root, parsed).items()}
    return Dataset('Pascal VOC', root, tuple(names), splits)


def _parse(path: Path, images: Dict[str, Path]) -> Image:
    try:
        tree = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f'{path} cannot be read as XML ({error})') from None
    name = tree.findtext('filename') or path.stem
    image = images.get(path.stem) or images.get(Path(name).stem)
    if image is None:
        raise DataError(f'image {name} of {path} does not exist in the data set')
    return Image(path, image, [_object(path, item) for item in tree.iter('object')])


def _object(path: Path, item: ElementTree.Element) -> tuple:
    name = (item.findtext('name') or '').strip()
    box = item.find('bndbox')
    try:
        corners = [float(box.findtext(key)) for key in ('xmin', 'ymin', 'xmax', 'ymax')]
    except (AttributeError, TypeError, ValueError):
        raise DataError(f'{path}: object {name!r} has no bndbox of four numbers') from None
    if not name:
        raise DataError(f'{path}: an object has no name')
    return (name, *corners, (item.findtext('difficult') or '0').strip() == '1')


def _parts(root: Path, images: List[Image]) -> Dict[str, List[Image]]:
    """The images of each part: by ImageSets, by the names of folders, or all to train on."""
    lists = {name: stems for name, stems in _image_sets(root).items() if stems}
    if TRAIN in lists:
        return {name: [image for image in images if image.path.stem in stems]
                for name, stems in lists.items()}
    parts: Dict[str, List[Image]] = {}
    for image in images:
        folders = image.path.relative_to(root).parts[:-1]
        name = next((found for folder in reversed(folders) if (found := split_name(folder))), None)
        parts.setdefault(name or TRAIN, []).append(image)
    return parts if TRAIN in parts else {TRAIN: images}


def _image_sets(root: Path) -> Dict[str, set]:
    """The stems in ImageSets/Main/train.txt, val.txt and test.txt."""
    found: Dict[str, set] = {}
    for path in sorted(root.rglob('ImageSets/Main/*.txt')):
        if path.stem in ('train', 'val', 'test'):
            words = (line.split() for line in path.read_text().splitlines())
            found[path.stem] = {line[0] for line in words if line}
    return found


def _split(root: Path, images: List[Image], names: List[str]) -> Split:
    content = CocoContent(tuple(names))
    labels = {name: label for label, name in enumerate(names)}
    for image in images:
        image_id = content.add_image(str(image.image.relative_to(root)),
                                     image_size(image.image))
        for name, x1, y1, x2, y2, difficult in image.objects:
            # VOC counts pixels from 1, and xmax is the last pixel of the object.
            content.add_box(image_id, labels[name], [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1],
                            difficult=difficult)
    return Split(content.content(), root)
