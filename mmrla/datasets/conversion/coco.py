"""COCO-format annotation files in a folder, and the folders of their images."""
from pathlib import Path
from typing import Dict, List

from mmrla.datasets.checks import read_annotations
from mmrla.datasets.errors import DataError

from .splits import TRAIN, Dataset, Split, split_name

DEPTH = 3


def find_files(root: Path) -> List[Path]:
    """The COCO-format files below a folder: objects with images, annotations, categories."""
    return [path for path in sorted(root.rglob('*.json'))
            if len(path.relative_to(root).parts) <= DEPTH and _looks_like_coco(path)]


def _looks_like_coco(path: Path) -> bool:
    """Whether a file begins as JSON and names the three lists, without parsing it all."""
    with path.open('rb') as file:
        if not file.read(1024).lstrip().startswith(b'{'):
            return False
        file.seek(0)
        text = file.read()
    return all(f'"{key}"'.encode() in text for key in ('images', 'annotations', 'categories'))


def read(root: Path, paths: List[Path]) -> Dataset:
    """Read a COCO-format data set.

    Args:
        root: The folder of the data set.
        paths: Its annotation files; those about keypoints or captions are left out if there
            are others.
    """
    contents = {path: read_annotations(path) for path in paths}
    boxes = {path: content for path, content in contents.items() if _has_boxes(content)}
    if not boxes:
        raise DataError(f'{paths[0]} has no boxes ("bbox") in its annotations')
    chosen = _one_of_each(list(boxes))
    splits = {name: Split(boxes[path], image_folder(root, path, boxes[path]), path)
              for name, path in chosen.items()}
    return Dataset('COCO', root, _classes(splits), splits)


def _has_boxes(content: dict) -> bool:
    return any(isinstance(item, dict) and item.get('bbox') for item in
               content['annotations'][:100])


def _one_of_each(paths: List[Path]) -> Dict[str, Path]:
    """The file of each part; ``instances`` wins over ``person_keypoints`` and others."""
    paths = sorted(paths, key=lambda path: ('instances' not in path.name, str(path)))
    chosen: Dict[str, Path] = {}
    for path in paths:
        name = split_name(path.stem) or split_name(path.parent.name) or TRAIN
        chosen.setdefault(name, path)
    if TRAIN not in chosen:
        raise DataError(f'none of {", ".join(str(path) for path in paths)} is named as the '
                        'annotations of training images; rename one to train.json')
    return chosen


def _classes(splits: Dict[str, Split]) -> tuple:
    """The names of the categories by id; all parts must have the same."""
    names = {name: tuple(category['name'] for category in
                         sorted(split.content['categories'], key=lambda item: item['id']))
             for name, split in splits.items()}
    for name, found in names.items():
        if set(found) != set(names[TRAIN]):
            other = sorted(set(found) ^ set(names[TRAIN]))
            raise DataError(f'{splits[name].path} and {splits[TRAIN].path} do not have the same '
                            f'categories: {other[0]!r} is in one of them only')
    return _without_supercategory(names[TRAIN], splits[TRAIN].content)


def _without_supercategory(names: tuple, content: dict) -> tuple:
    """Drop a first category that no object has, which Roboflow's exports begin with."""
    used = {item['category_id'] for item in content['annotations']}
    first = min(content['categories'], key=lambda item: item['id'])
    is_unused = first['id'] == 0 and first['id'] not in used and len(names) > 1
    return names[1:] if is_unused else names


def image_folder(root: Path, path: Path, content: dict) -> Path:
    """The folder that has the images of an annotation file."""
    names = [image['file_name'] for image in content['images'][:5] if image.get('file_name')]
    if not names:
        raise DataError(f'{path} lists no images')
    for folder in _candidates(root, path):
        if all((folder / name).is_file() for name in names):
            return folder
    raise DataError(f'image {names[0]}, which {path} lists, is in no folder below {root}')


def _candidates(root: Path, path: Path) -> List[Path]:
    """Folders to look in: those named like the annotation file first."""
    name = split_name(path.stem) or split_name(path.parent.name)
    folders = [path.parent, root, *sorted(item for item in root.rglob('*') if item.is_dir())]
    return sorted(folders, key=lambda folder: split_name(folder.name) != name)
