"""COCO-format data sets as other tools export them."""
import json
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple
from xml.sax.saxutils import escape


def parts_of(coco: Path) -> Iterator[Tuple[str, Dict[str, Any], Path]]:
    """Yield the name, the annotations and the image folder of each part of a COCO data set."""
    for split in ('train', 'val'):
        content = json.loads((coco / f'annotations/instances_{split}2017.json').read_text())
        yield split, content, coco / f'{split}2017'


def class_names(content: Dict[str, Any]) -> List[str]:
    """The names of the categories, in the order of their ids."""
    return [item['name'] for item in sorted(content['categories'], key=lambda item: item['id'])]


def _objects(content: Dict[str, Any]) -> Iterator[Tuple[dict, List[Tuple[int, list]]]]:
    """Yield each image with (label, box) of its objects, without crowds."""
    ids = sorted(item['id'] for item in content['categories'])
    for image in content['images']:
        yield image, [(ids.index(item['category_id']), item['bbox'])
                      for item in content['annotations']
                      if item['image_id'] == image['id'] and not item['iscrowd']]


def write_yolo(coco: Path, root: Path) -> Path:
    """Write a COCO data set in YOLO's format, as an exporter of another machine does."""
    for split, content, images in parts_of(coco):
        (root / split / 'labels').mkdir(parents=True)
        shutil.copytree(images, root / split / 'images')
        for image, objects in _objects(content):
            width, height = image['width'], image['height']
            lines = [f'{label} {(x + w / 2) / width} {(y + h / 2) / height} {w / width} '
                     f'{h / height}' for label, (x, y, w, h) in objects]
            name = Path(image['file_name']).stem
            (root / split / f'labels/{name}.txt').write_text('\n'.join(lines))
        (root / 'data.yaml').write_text(
            f'train: ../train/images\nval: ../val/images\nnc: {len(class_names(content))}\n'
            f'names: {class_names(content)}\n')
    return root


def write_voc(coco: Path, root: Path) -> Path:
    """Write a COCO data set in Pascal VOC's format."""
    for folder in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
        (root / folder).mkdir(parents=True)
    for split, content, images in parts_of(coco):
        names = class_names(content)
        stems = []
        for image, boxes in _objects(content):
            shutil.copy(images / image['file_name'], root / 'JPEGImages')
            stems.append(Path(image['file_name']).stem)
            objects = ''.join(
                f'<object><name>{escape(names[label])}</name><bndbox><xmin>{x + 1}</xmin>'
                f'<ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>'
                for label, (x, y, w, h) in boxes)
            (root / f'Annotations/{stems[-1]}.xml').write_text(
                f'<annotation><filename>{image["file_name"]}</filename>{objects}</annotation>')
        (root / f'ImageSets/Main/{split}.txt').write_text('\n'.join(stems))
    return root
