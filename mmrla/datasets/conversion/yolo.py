"""YOLO-format data sets: a text file of normalised boxes or polygons for each image."""
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import yaml

from mmrla.datasets.errors import DataError
from mmrla.datasets.folders import IMAGE_SUFFIXES

from .splits import NAMES, TRAIN, CocoContent, Dataset, Split, image_size

NAME_FILES = ('classes.txt', 'obj.names', 'labels.txt', '_darknet.labels')


def find_description(root: Path) -> Optional[Path]:
    """The YAML file that has ``names``, or the text file with one name a line."""
    for path in (*sorted(root.glob('*.yaml')), *sorted(root.glob('*.yml'))):
        if 'names' in _read_yaml(path):
            return path
    return next((path for name in NAME_FILES for path in (root / name, root / 'labels' / name)
                 if path.is_file()), None)


def _read_yaml(path: Path) -> Dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f'{path} cannot be read as YAML ({str(error).splitlines()[0]})') from error
    return content if isinstance(content, dict) else {}


def class_names(path: Path) -> Tuple[str, ...]:
    """The names of the classes, by their numbers."""
    if path.suffix not in ('.yaml', '.yml'):
        return tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    names = _read_yaml(path)['names']
    if isinstance(names, dict):
        try:
            by_number = {int(key): str(value) for key, value in names.items()}
        except (TypeError, ValueError):
            raise DataError(f'names in {path} must be numbered 0, 1, 2, ...') from None
        if sorted(by_number) != list(range(len(by_number))):
            raise DataError(f'names in {path} must be numbered 0, 1, 2, ... without a gap')
        return tuple(by_number[number] for number in range(len(by_number)))
    if not isinstance(names, list) or not names:
        raise DataError(f'names in {path} must be a list of class names')
    return tuple(map(str, names))


def read(root: Path, description: Path) -> Dataset:
    """Read a YOLO-format data set.

    Args:
        root: The folder of the data set.
        description: What :func:`find_description` returned.
    """
    classes = class_names(description)
    splits, notes = {}, []
    for name, images in _image_lists(root, description).items():
        if images:
            splits[name] = _read_split(root, images, classes, notes)
    if TRAIN not in splits:
        raise DataError(f'{description} names no folder of training images that exists')
    return Dataset('YOLO', root, classes, splits, tuple(notes))


def _image_lists(root: Path, description: Path) -> Dict[str, List[Path]]:
    """The images of each part, as the YAML file names them or as the folders are named."""
    listed: Dict[str, List[Path]] = {}
    if description.suffix in ('.yaml', '.yml'):
        content = _read_yaml(description)
        for key, name in NAMES.items():
            for place in _as_list(content.get(key)):
                listed.setdefault(name, []).extend(_images_at(root, content.get('path'), place))
    if listed.get(TRAIN):
        return listed
    for folder in sorted(path for path in root.rglob('*') if path.is_dir()):
        part = next((NAMES[word] for word in reversed(folder.relative_to(root).parts)
                     if word in NAMES), None)
        if part and folder.name != 'labels' and 'labels' not in folder.relative_to(root).parts:
            listed.setdefault(part, []).extend(_images_in(folder))
    return listed if listed.get(TRAIN) else {TRAIN: sorted(
        path for path in root.rglob('*') if _is_image(path))}


def _as_list(value: Any) -> List[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _images_at(root: Path, base: Any, place: str) -> List[Path]:
    """The images of a folder or of a list file that a YAML file names.

    Paths in such files are often of another machine: the last parts of a path are looked for
    below the data set, too.
    """
    parts = [part for part in Path(place).parts if part not in ('..', '.', '/')]
    candidates = [Path(place), root / place, root / str(base or '') / place,
                  *(root.joinpath(*parts[number:]) for number in range(len(parts)))]
    for path in candidates:
        if path.is_dir():
            return sorted(item for item in path.rglob('*') if _is_image(item))
        if path.is_file() and path.suffix == '.txt':
            names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
            return [item for item in (_listed(root, path.parent, name) for name in names) if item]
    return []


def _listed(root: Path, folder: Path, name: str) -> Optional[Path]:
    return next((path for path in (Path(name), folder / name, root / name) if path.is_file()),
                None)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _images_in(folder: Path) -> List[Path]:
    return sorted(path for path in folder.iterdir() if _is_image(path))


def label_file(image: Path) -> Path:
    """The label file of an image: ``images`` becomes ``labels`` in its path."""
    parts = list(image.parts)
    for number in range(len(parts) - 2, -1, -1):
        if parts[number] == 'images':
            parts[number] = 'labels'
            moved = Path(*parts).with_suffix('.txt')
            if moved.parent.is_dir():
                return moved
    return image.with_suffix('.txt')


def _read_split(root: Path, images: List[Path], classes: Tuple[str, ...], notes: List[str]
                ) -> Split:
    content = CocoContent(classes)
    base = root.resolve()
    unlabelled = 0
    for image in images:
        size = image_size(image)
        path = image.resolve()
        name = str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
        image_id = content.add_image(name, size)
        labels = label_file(image)
        if not labels.is_file():
            unlabelled += 1
            continue
        for label, box, polygon in _objects(labels, size, len(classes)):
            content.add_box(image_id, label, box, polygon)
    if unlabelled == len(images):
        raise DataError(f'none of the {len(images)} images in {images[0].parent} has a label file '
                        f'such as {label_file(images[0])}')
    if unlabelled:
        notes.append(f'{unlabelled} of {len(images)} images have no label file: they count as '
                     'images without objects')
    return Split(content.content(), root)


def _objects(path: Path, size: Tuple[int, int], count: int
             ) -> Iterator[Tuple[int, List[float], Optional[List[float]]]]:
    """The label, box and polygon of each line of a label file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if not words:
            continue
        where = f'{path}, line {number}'
        try:
            label, values = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            raise DataError(f'{where}: {line[:60]!r} is not a class number and coordinates'
                            ) from None
        if not 0 <= label < count:
            raise DataError(f'{where}: class {label} is unknown; there are {count} names, numbered '
                            'from 0')
        if any(value < -0.01 or value > 1.5 for value in values):
            raise DataError(f'{where}: {line[:60]!r} is not normalised; YOLO coordinates are '
                            'shares of the width and height, from 0 to 1')
        yield (label, *_geometry(values, size, where))


def _geometry(values: List[float], size: Tuple[int, int], where: str
              ) -> Tuple[List[float], Optional[List[float]]]:
    """The box in pixels, and the polygon if there is one."""
    width, height = size
    if len(values) in (4, 5):  # a fifth value is a score
        x, y, w, h = values[:4]
        return [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height], None
    if len(values) < 6 or len(values) % 2:
        raise DataError(f'{where}: {len(values)} coordinates; a box has 4, a polygon 6 or more')
    points = [value * (height if number % 2 else width) for number, value in enumerate(values)]
    xs, ys = points[::2], points[1::2]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)], points
