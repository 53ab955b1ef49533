"""Checks that read every image and every annotation of a data set."""
import json
import math
import os.path as osp
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import cv2
import numpy as np

from .errors import DataError, check_image_file, printable, reason
from .folders import IMAGE_SUFFIXES
from .processes import end_with_parent

# Training works with these problems: they are reported, but they are not failures.
HARMLESS = ('unused category', 'image without annotations', 'box partly outside')


class ImageJob(NamedTuple):
    """An image to read.

    Attributes:
        path: Path of the file.
        size: (width, height) in the annotations, or None.
    """
    path: str
    size: Optional[Tuple[int, int]]


class Report:
    """The problems that were found, counted by kind, with a few examples of each.

    Args:
        examples: Number of examples to keep of each kind.
    """

    def __init__(self, examples: int = 5) -> None:
        self.examples = examples
        self.counts: Counter = Counter()
        self.found: Dict[str, List[str]] = defaultdict(list)
        self.checked: Counter = Counter()

    def add(self, kind: str, example: str) -> None:
        """Add a problem."""
        self.counts[kind] += 1
        if len(self.found[kind]) < self.examples:
            self.found[kind].append(printable(example))

    @property
    def is_fine(self) -> bool:
        """Whether no problem was found that affects training."""
        return not any(kind not in HARMLESS for kind in self.counts)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield 'checked ' + ', '.join(f'{n} {what}' for what, n in self.checked.items())
        for kind, count in self.counts.most_common():
            yield f'{count} x {kind}{" (harmless)" if kind in HARMLESS else ""}'
            yield from (f'    {example}' for example in self.found[kind])
            if count > len(self.found[kind]):
                yield f'    ... and {count - len(self.found[kind])} more'
        yield 'no problems found' if self.is_fine else 'problems found'


def read_annotations(path: Path) -> Dict[str, List[dict]]:
    """Read a file in COCO format; any other content raises a ``DataError``.

    Returns:
        dict: ``images``, ``annotations`` and ``categories``.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise DataError(f'annotations {path} are not a file')
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f'annotations {path} do not exist') from None
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(f'annotations {path} cannot be read as JSON ({reason(error)})') from error
    if not isinstance(content, dict):
        raise DataError(f'annotations {path} contain a {type(content).__name__} instead of an '
                        'object with images, annotations and categories')
    for key in ('images', 'annotations', 'categories'):
        if not isinstance(content.get(key), list):
            raise DataError(f'annotations {path} have no list of {key}')
    return content


def check_coco(report: Report, path: Path, image_folder: Path,
               num_classes: Optional[int] = None) -> List[ImageJob]:
    """Check the annotations of a data set in COCO format.

    Args:
        report: Problems are added to it.
        path: The annotation file.
        image_folder: Folder of the images.
        num_classes: Number of classes of the model.

    Returns:
        list[ImageJob]: The images, for :func:`check_images`.
    """
    content = read_annotations(path)
    images = _by_id(report, path, content['images'], 'image')
    categories = _by_id(report, path, content['categories'], 'category')
    annotations = _by_id(report, path, content['annotations'], 'annotation')
    report.checked['images'] += len(images)
    report.checked['annotations'] += len(annotations)
    placed = []  # the annotations of images that the file lists
    for key, annotation in annotations.items():
        image = images.get(_hashable(annotation.get('image_id')))
        where = f'{path}: annotation {key}'
        if image is None:
            report.add('annotation of an unknown image',
                       f'{where} has image_id {annotation.get("image_id")!r}')
        else:
            placed.append(annotation)
            where += f' of {image.get("file_name")}'
            _check_annotation(report, where, annotation, image, categories)
    _check_unannotated(report, path, images, placed)
    _check_categories(report, path, categories, placed, num_classes)
    return _image_jobs(report, path, images, image_folder)


def _check_annotation(report: Report, where: str, annotation: dict, image: dict,
                      categories: Dict[Any, dict]) -> None:
    category = _hashable(annotation.get('category_id'))
    if category not in categories:
        report.add('unknown category', f'{where} has category_id {category!r}')
    _check_box(report, where, annotation, image)
    _check_segmentation(report, where, annotation.get('segmentation'), image)


def _check_unannotated(report: Report, path: Path, images: Dict[Any, dict],
                       annotations: List[dict]) -> None:
    annotated = {_hashable(annotation.get('image_id')) for annotation in annotations}
    for key in images.keys() - annotated:
        report.add('image without annotations', f'{path}: {images[key].get("file_name")}')


def _check_categories(report: Report, path: Path, categories: Dict[Any, dict],
                      annotations: List[dict], num_classes: Optional[int]) -> None:
    used = {_hashable(annotation.get('category_id')) for annotation in annotations}
    for key in categories.keys() - used:
        report.add('unused category', f'{path}: {categories[key].get("name")!r} (id {key})')
    names = Counter(str(category.get('name')) for category in categories.values())
    for name, count in names.items():
        if count > 1:
            report.add('duplicate category name', f'{path}: {name!r}, {count} times')
    if num_classes is not None and num_classes != len(categories):
        report.add('num_classes does not fit',
                   f'{path} has {len(categories)} categories, but the model has '
                   f'num_classes={num_classes}')


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (int, str, float)) else repr(value)


def _by_id(report: Report, path: Path, entries: List[Any], what: str) -> Dict[Any, dict]:
    """Return the entries by id; a missing or repeated id is reported."""
    found: Dict[Any, dict] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or 'id' not in entry:
            report.add(f'{what} without an id', f'{path}: entry {number}: {str(entry)[:80]}')
            continue
        key = _hashable(entry['id'])
        if key in found:
            report.add(f'duplicate {what} id', f'{path}: {what} id {key!r}')
        found.setdefault(key, entry)
    return found


def _numbers(values: Any, count: Optional[int] = None) -> Optional[List[float]]:
    """Return values as floats, or None if they are not a list of ``count`` numbers."""
    if not isinstance(values, (list, tuple)) or count not in (None, len(values)):
        return None
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        return None
    try:
        return [float(value) for value in values]
    except OverflowError:  # an integer with hundreds of digits
        return None


def _size(image: dict) -> Optional[Tuple[int, int]]:
    size = _numbers([image.get('width'), image.get('height')])
    if size is None or not all(math.isfinite(side) and side >= 1 for side in size):
        return None
    return int(size[0]), int(size[1])


def _check_box(report: Report, where: str, annotation: dict, image: dict) -> None:
    box = _numbers(annotation.get('bbox'), 4)
    if box is None:
        report.add('box that is not four numbers', f'{where}: {str(annotation.get("bbox"))[:80]}')
        return
    if not all(map(math.isfinite, box)):
        report.add('box with NaN or infinity', f'{where}: {box}')
        return
    x, y, width, height = box
    if width <= 0 or height <= 0:
        report.add('box without area', f'{where}: {box}')
    area = _numbers([annotation.get('area')])
    if area is None or not area[0] > 0:
        report.add('area that is not positive', f'{where}: area {annotation.get("area")!r}')
    size = _size(image)
    if size is None:
        return
    example = f'{where}: {box}, the image size is {size[0]}x{size[1]}'
    if x + width <= 0 or y + height <= 0 or x >= size[0] or y >= size[1]:
        report.add('box outside the image', example)
    elif x < -1 or y < -1 or x + width > size[0] + 1 or y + height > size[1] + 1:
        report.add('box partly outside', example)


def _check_segmentation(report: Report, where: str, segmentation: Any, image: dict) -> None:
    """Check a list of polygons, or a run-length encoding."""
    if segmentation in (None, []):
        return
    if isinstance(segmentation, dict):
        problem = _run_length_problem(segmentation, image)
    elif isinstance(segmentation, list):
        problem = next(filter(None, map(_polygon_problem, segmentation)), None)
    else:
        problem = (f'{type(segmentation).__name__} instead of a list of polygons or a run-length '
                   'encoding')
    if problem:
        report.add('broken polygon or mask', f'{where}: {problem}')


def _polygon_problem(polygon: Any) -> Optional[str]:
    points = _numbers(polygon)
    if points is None:
        return f'a polygon that is not a list of numbers: {str(polygon)[:60]}'
    if len(points) < 6 or len(points) % 2:
        return f'a polygon of {len(points)} numbers; x and y of at least 3 points are needed'
    if not all(map(math.isfinite, points)):
        return 'a polygon with NaN or infinity'
    return None


def _run_length_problem(mask: dict, image: dict) -> Optional[str]:
    size, counts = _numbers(mask.get('size'), 2), mask.get('counts')
    if size is None:
        return 'a run-length encoding without a size'
    if _size(image) and (int(size[1]), int(size[0])) != _size(image):
        return f'run lengths for {size[1]:g}x{size[0]:g}, but the image size is {_size(image)}'
    if isinstance(counts, list):
        runs = _numbers(counts)
        if runs is None or any(not run >= 0 for run in runs) or sum(runs) != size[0] * size[1]:
            return 'run lengths whose sum is not the image area'
    elif isinstance(counts, str):
        runs = _decode_runs(counts)
        if runs is None or min(runs, default=0) < 0 or sum(runs) != size[0] * size[1]:
            return 'compressed run lengths that do not describe a mask of that size'
    else:
        return 'a run-length encoding without counts'
    return None


def _decode_runs(text: str) -> Optional[List[int]]:
    """The run lengths of COCO's compressed strings; None if the text is not such a string.

    Every character carries 5 bits of a number, the lowest first, and whether the number goes
    on. From the fourth on, a number is the difference to the run before the last.
    """
    runs: List[int] = []
    value = shift = 0
    for char in text:
        code = ord(char) - 48
        if not 0 <= code < 64 or shift > 60:
            return None
        value |= (code & 31) << shift
        shift += 5
        if code & 32:
            continue
        if code & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs


def _image_jobs(report: Report, path: Path, images: Dict[Any, dict],
                folder: Path) -> List[ImageJob]:
    jobs, seen = [], Counter()
    for key, image in images.items():
        name = image.get('file_name')
        if not isinstance(name, str) or not name or '\0' in name:
            report.add('image without a file name', f'{path}: image {key}')
            continue
        seen[name] += 1
        if seen[name] == 2:
            report.add('file listed for two images', f'{path}: {name}')
        if _is_outside(name):
            report.add('image outside its folder', f'{path}: {name} (not read)')
            continue
        if _size(image) is None:
            report.add('image without a size', f'{path}: {name}: width {image.get("width")!r}, '
                       f'height {image.get("height")!r}')
        jobs.append(ImageJob(str(folder / name), _size(image)))
    return jobs


def _is_outside(name: str) -> bool:
    """Whether a path leaves the folder that it is relative to; links may."""
    return osp.isabs(name) or osp.normpath(name).split(osp.sep)[0] == osp.pardir


def check_folders(report: Report, root: Path, num_classes: Optional[int] = None
                  ) -> List[ImageJob]:
    """Check class folders, laid out like ImageNet.

    Args:
        report: Problems are added to it.
        root: The folder of the class folders.
        num_classes: Number of classes of the model.

    Returns:
        list[ImageJob]: The images, for :func:`check_images`.
    """
    if not root.is_dir():
        raise DataError(f'{root} is not a folder')
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    if num_classes is not None and num_classes != len(classes):
        report.add('num_classes does not fit',
                   f'{root} has {len(classes)} class folders, but the model has '
                   f'num_classes={num_classes}')
    jobs = []
    for folder in classes:
        images = [path for path in sorted(folder.rglob('*'))
                  if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
        if not images:
            report.add('class without images', str(folder))
        jobs += [ImageJob(str(path), None) for path in images]
    report.checked['images'] += len(jobs)
    report.checked['classes'] += len(classes)
    return jobs


def image_problem(job: ImageJob) -> Optional[Tuple[str, str]]:
    """Read an image and return its problem as a kind and an example, or None."""
    try:
        check_image_file(job.path)
        content = Path(job.path).read_bytes()
    except FileNotFoundError:
        return 'missing image', job.path
    except (OSError, ValueError) as error:
        return 'unreadable image', f'{job.path} ({reason(error)})'
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        return 'unreadable image', f'{job.path} ({reason(error)})'
    if image is None:
        return 'unreadable image', f'{job.path} ({len(content)} bytes, not an image)'
    if _is_truncated(content):
        return 'truncated image', job.path
    found = image.shape[1], image.shape[0]
    if job.size is not None and job.size != found:
        return 'wrong size', (f'{job.path} is {found[0]}x{found[1]}, in the annotations it is '
                              f'{job.size[0]}x{job.size[1]}')
    return None


def _is_truncated(content: bytes) -> bool:
    """Return whether the end of a JPEG or PNG is missing; decoders fill it with grey."""
    if content.startswith(b'\xff\xd8'):
        return b'\xff\xd9' not in content[-512:]
    if content.startswith(b'\x89PNG'):
        return b'IEND' not in content[-64:]
    return False


def check_images(report: Report, jobs: List[ImageJob], workers: int,
                 progress: Callable[[Iterable], Iterable] = iter) -> None:
    """Read images in parallel.

    Args:
        report: Problems are added to it.
        jobs: The images.
        workers: Number of processes that read; 0 reads in this process.
        progress: Wraps the iterator to show the progress.
    """
    if workers == 0:
        problems = map(image_problem, jobs)
        _add_all(report, progress(problems))
        return
    with ProcessPoolExecutor(workers, initializer=_start_worker) as pool:
        _add_all(report, progress(pool.map(image_problem, jobs, chunksize=16)))


def _start_worker() -> None:
    end_with_parent()
    cv2.setNumThreads(1)


def _add_all(report: Report, problems: Iterable[Optional[Tuple[str, str]]]) -> None:
    for problem in problems:
        if problem is not None:
            report.add(*problem)


def check_overlap(report: Report, first: List[ImageJob], second: List[ImageJob]) -> None:
    """Report images that two data sets have in common, by content."""
    by_size: Dict[int, List[Path]] = defaultdict(list)
    for job in first:
        path = Path(job.path)
        if path.is_file():
            by_size[path.stat().st_size].append(path)
    for job in second:
        path = Path(job.path)
        same = by_size.get(path.stat().st_size, []) if path.is_file() else []
        content = path.read_bytes() if same else b''
        for other in same:
            if other.samefile(path) or other.read_bytes() == content:
                report.add('image in both train and val', f'{other} and {path}')
                break
