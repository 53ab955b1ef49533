"""Small data sets for detection, segmentation and classification without a download.

The images show shapes of six classes with random sizes, colors and rotations, which
may overlap, on a textured background with clutter. The detection set has the layout
and annotations of COCO. The annotation of a shape covers its visible part. Some
images contain a crowd (many small shapes with one run-length mask), and some contain
no shape. The classification set has the layout of ImageNet, with one shape per image.

Each image depends only on the seed and its number.
"""
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Tuple

import cv2
import numpy as np

from .errors import DataError

CLASSES = ('disc', 'square', 'triangle', 'star', 'cross', 'ring')
# Increase this number when the same arguments draw different images.
VERSION = 1
SPLITS = ('train', 'val')
SIDES = (112, 161)
SIZES = (28, 96)
EMPTY_SHARE = 0.04
CROWD_SHARE = 0.06
MIN_VISIBLE = 0.35


class Shape(NamedTuple):
    """A drawn object.

    Attributes:
        category: Index into ``CLASSES``.
        mask: The visible pixels, bool, (H, W).
        is_crowd: Whether it is a crowd of shapes.
    """
    category: int
    mask: np.ndarray
    is_crowd: bool = False


def outline(category: int, size: float, angle: float) -> np.ndarray:
    """Return the corners of a shape around the origin, (n, 2)."""
    if CLASSES[category] in ('disc', 'ring'):
        radii, corners = np.array([1.0]), 48
    elif CLASSES[category] == 'star':
        radii, corners = np.array([1.0, 0.42]), 10
    elif CLASSES[category] == 'cross':
        arm = np.array([[.3, 1], [.3, .3], [1, .3], [1, -.3], [.3, -.3], [.3, -1]])
        points = np.concatenate([arm, -arm])
        return size / 2 * points @ _rotation(angle)
    else:
        radii, corners = np.array([1.0]), 4 if CLASSES[category] == 'square' else 3
    turns = 2 * np.pi * np.arange(corners) / corners
    points = np.stack([np.cos(turns), np.sin(turns)], 1)
    return size / 2 * np.resize(radii, corners)[:, None] * points @ _rotation(angle)


def _rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def shape_mask(category: int, size: float, centre: np.ndarray, angle: float,
               image_shape: Tuple[int, int]) -> np.ndarray:
    """Return the pixels of a shape, including hidden ones: bool, (H, W)."""
    mask = np.zeros(image_shape, np.uint8)
    points = outline(category, size, angle)
    cv2.fillPoly(mask, [np.round(points + centre).astype(np.int32)], 1)
    if CLASSES[category] == 'ring':
        cv2.fillPoly(mask, [np.round(0.5 * points + centre).astype(np.int32)], 0)
    return mask.astype(bool)


def ground(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return a textured background with clutter: float, (H, W, 3)."""
    coarse = rng.uniform(40, 215, (4, 5, 1)) + rng.uniform(-35, 35, (4, 5, 3))
    coarse = coarse.astype(np.float32)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(rng.integers(2, 6)):
        ends = rng.integers(0, (width, height), (2, 2))
        colour = tuple(map(float, rng.uniform(0, 255, 3)))
        cv2.line(image, tuple(map(int, ends[0])), tuple(map(int, ends[1])), colour,
                 int(rng.integers(1, 4)))
    return image + rng.normal(0, 5, image.shape)


def paint(rng: np.random.Generator, image: np.ndarray, mask: np.ndarray, category: int,
          class_hues: bool = True) -> None:
    """Color the pixels of a mask.

    By default each class has a hue, so that a detector learns to tell the classes
    apart within minutes on a CPU. Without ``class_hues`` the hue is random, and only
    the outline identifies the class.
    """
    if class_hues:
        hue = 180 * category / len(CLASSES) + rng.uniform(-11, 11)
    else:
        hue = rng.uniform(0, 180)
    shade = np.array([[[hue % 180, rng.uniform(130, 255), rng.uniform(130, 255)]]])
    colour = cv2.cvtColor(shade.astype(np.uint8), cv2.COLOR_HSV2BGR)[0, 0]
    image[mask] = colour + rng.normal(0, 6, (int(mask.sum()), 3))


def draw_crowd(rng: np.random.Generator, image: np.ndarray, class_hues: bool = True) -> Shape:
    """Draw many small shapes of one class, close together."""
    height, width = image.shape[:2]
    category = int(rng.integers(len(CLASSES)))
    centre = rng.uniform((35, 35), (width - 35, height - 35))
    union = np.zeros((height, width), bool)
    for _ in range(rng.integers(14, 22)):
        at = centre + rng.normal(0, 13, 2)
        mask = shape_mask(category, rng.uniform(9, 14), at, rng.uniform(0, 2 * np.pi),
                          (height, width))
        if mask.any():
            paint(rng, image, mask, category, class_hues)
            union |= mask
    return Shape(category, union, is_crowd=True)


def draw_image(seed: int, number: int, class_hues: bool = True
               ) -> Tuple[np.ndarray, List[Shape]]:
    """Draw image ``number`` of the data set ``seed``.

    The shapes and their positions do not depend on ``class_hues``.

    Returns:
        tuple: The image, uint8, (H, W, 3), and its visible shapes.
    """
    rng = np.random.default_rng([VERSION, seed, number])
    height, width = (int(side) for side in rng.integers(*SIDES, 2))
    image = ground(rng, height, width)
    shapes: List[Shape] = []
    kind = rng.uniform()
    if kind >= EMPTY_SHARE:
        if kind < EMPTY_SHARE + CROWD_SHARE:
            shapes.append(draw_crowd(rng, image, class_hues))
        for _ in range(rng.integers(1, 6)):
            shapes = _place(rng, image, shapes, class_hues)
    return image.clip(0, 255).astype(np.uint8), shapes


def _place(rng: np.random.Generator, image: np.ndarray, shapes: List[Shape],
           class_hues: bool) -> List[Shape]:
    """Draw a shape over the others, unless it would hide too much of one."""
    height, width = image.shape[:2]
    category = int(rng.integers(len(CLASSES)))
    size = float(np.exp(rng.uniform(*np.log(SIZES))))
    margin = size / 3
    centre = rng.uniform((margin, margin), (width - margin, height - margin))
    angle = rng.uniform(0, 2 * np.pi)
    mask = shape_mask(category, size, centre, angle, (height, width))
    for shape in shapes:
        hidden = (shape.mask & mask).sum()
        if shape.is_crowd and hidden or hidden > (1 - MIN_VISIBLE) * shape.mask.sum():
            return shapes
    paint(rng, image, mask, category, class_hues)
    return [shape._replace(mask=shape.mask & ~mask) for shape in shapes] + [Shape(category, mask)]


def fill_holes(mask: np.ndarray) -> np.ndarray:
    """Fill the holes of a mask, which COCO's polygons cannot represent."""
    contours, _ = cv2.findContours(
        mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros(mask.shape, np.uint8)
    cv2.drawContours(filled, contours, -1, 1, cv2.FILLED)
    return filled.astype(bool)


def polygons(mask: np.ndarray) -> List[List[float]]:
    """Return the outer boundaries of a mask as COCO's flat lists of x and y.

    OpenCV's contours pass through the centers of the outermost pixels. Traced on
    a finer grid, they follow the edges of the pixels, as COCO's polygons do.
    """
    fine = np.kron(mask.astype(np.uint8), np.ones((4, 4), np.uint8))
    contours, _ = cv2.findContours(fine, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [((contour.ravel() + 0.5) / 4).tolist() for contour in contours]


def run_lengths(mask: np.ndarray) -> Dict:
    """Encode a mask as COCO's uncompressed run lengths, column by column."""
    flat = np.concatenate([[0], mask.T.ravel().astype(np.int8), [0]])
    changes = np.flatnonzero(np.diff(flat))
    counts = np.diff(np.concatenate([[0], changes]))
    rest = mask.size - (changes[-1] if len(changes) else 0)
    return dict(size=list(mask.shape), counts=[*map(int, counts), int(rest)])


def annotation(shape: Shape, number: int, image_id: int) -> Dict:
    """Return the COCO annotation of a shape."""
    mask = shape.mask if shape.is_crowd else fill_holes(shape.mask)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = int(columns[0]), int(rows[0])
    return dict(
        id=number,
        image_id=image_id,
        category_id=shape.category + 1,
        bbox=[x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y],
        area=int(mask.sum()),
        segmentation=run_lengths(mask) if shape.is_crowd else polygons(mask),
        iscrowd=int(shape.is_crowd))


def _write_image(path: Path, image: np.ndarray) -> None:
    if not cv2.imwrite(str(path), image):
        raise OSError(f'cannot write {path}')


def write_split(folder: Path, split: str, count: int, seed: int,
                class_hues: bool = True) -> None:
    """Write the images and annotations of one split."""
    (folder / f'{split}2017').mkdir(parents=True)
    images, annotations = [], []
    # Odd numbers are for training, even numbers for validation.
    first = 1 + SPLITS.index(split)
    for image_id in range(first, first + 2 * count, 2):
        image, shapes = draw_image(seed, image_id, class_hues)
        name = f'{image_id:012d}.png'
        _write_image(folder / f'{split}2017' / name, image)
        images.append(dict(id=image_id, file_name=name, height=image.shape[0],
                           width=image.shape[1]))
        for shape in shapes:
            annotations.append(annotation(shape, len(annotations) + 1, image_id))
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)]
    path = folder / f'annotations/instances_{split}2017.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(
        dict(info=dict(description='mmrla shapes'), images=images,
             annotations=annotations, categories=categories)))


def draw_crop(seed: int, number: int, category: int, side: int = 64) -> np.ndarray:
    """Draw an image of one shape, for classification: (side, side, 3)."""
    rng = np.random.default_rng([VERSION, seed, number, category])
    image = ground(rng, side, side)
    centre = rng.uniform(0.4 * side, 0.6 * side, 2)
    size = rng.uniform(0.45, 0.8) * side
    paint(rng, image, shape_mask(category, size, centre, rng.uniform(0, 2 * np.pi), (side, side)),
          category)
    return image.clip(0, 255).astype(np.uint8)


def write_class_folders(folder: Path, count: int, seed: int, first: int) -> None:
    """Write the images of each class to a folder, numbered from ``first``."""
    for category, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(first, first + count):
            _write_image(folder / name / f'{number:05d}.png', draw_crop(seed, number, category))


def make_class_folders(folder: os.PathLike, train: int = 100, val: int = 20,
                       seed: int = 0) -> Path:
    """Write a classification set with the layout of ImageNet.

    The folder is created atomically. If it already contains the same data set, it
    is not changed.

    Args:
        folder: Folder for ``train/{class}/`` and ``val/{class}/``.
        train: Number of training images per class.
        val: Number of validation images per class.
        seed: Seed of the drawing.

    Returns:
        Path: The folder.
    """

    def write(partial: Path) -> None:
        write_class_folders(partial / 'train', train, seed, first=0)
        write_class_folders(partial / 'val', val, seed, first=train)

    return _make_once(Path(folder), dict(train=train, val=val, seed=seed), write)


def make_shapes(folder: os.PathLike, train: int = 600, val: int = 120, seed: int = 0,
                class_hues: bool = True) -> Path:
    """Write a detection set with the layout of COCO 2017.

    The folder is created atomically. If it already contains the same data set, it
    is not changed.

    Args:
        folder: Folder for ``annotations/``, ``train2017/`` and ``val2017/``.
        train: Number of training images.
        val: Number of validation images.
        seed: Seed of the drawing.
        class_hues: Whether each class has its own hue. False draws the harder set,
            in which only the outline identifies the class.

    Returns:
        Path: The folder.
    """

    def write(partial: Path) -> None:
        write_split(partial, 'train', train, seed, class_hues)
        write_split(partial, 'val', val, seed, class_hues)

    recipe = dict(train=train, val=val, seed=seed)
    if not class_hues:
        recipe['class_hues'] = False
    return _make_once(Path(folder), recipe, write)


def _make_once(folder: Path, recipe: Dict[str, int], write: Callable[[Path], None]) -> Path:
    """Let ``write`` fill a new folder, unless it contains the data set of the recipe."""
    for name in ('train', 'val'):
        if recipe[name] < 1:
            raise DataError(f'{name}={recipe[name]} must be 1 or more')
    recipe = dict(version=VERSION, **recipe)
    stamp = folder / 'shapes.json'
    if stamp.exists() and json.loads(stamp.read_text()) == recipe:
        return folder
    if folder.exists() and not stamp.exists() and any(folder.iterdir()):
        raise DataError(
            f'{folder} contains other files; choose another folder or remove it')
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent))
    try:
        write(partial)
        (partial / stamp.name).write_text(json.dumps(recipe))
        partial.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
