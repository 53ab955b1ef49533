"""Validation images for the page: small JPEGs, and the boxes and masks to draw on them."""
import base64
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import cv2
import numpy as np

from mmrla.datasets.errors import check_image_file

from .matching import Match
from .results import Truth

SIDE = 480
QUALITY = 78


def choose(badness: Dict[int, float], count: int) -> List[int]:
    """Image ids: half of them the worst, the others spread over the rest.

    Args:
        badness: By image id.
        count: How many.
    """
    ranked = sorted(badness, key=lambda key: -badness[key])
    if len(ranked) <= count:
        return ranked
    worst, rest = ranked[:count // 2], ranked[count // 2:]
    places = np.linspace(0, len(rest) - 1, count - len(worst)).round().astype(int)
    return worst + [rest[place] for place in places]


def data_uri(image: np.ndarray, suffix: str = '.jpg', options: Sequence[int] = ()) -> str:
    """An image as an address that holds the file itself."""
    _, content = cv2.imencode(suffix, image, list(options))
    kind = dict([('.jpg', 'jpeg'), ('.png', 'png')])[suffix]
    return f'data:image/{kind};base64,{base64.b64encode(content.tobytes()).decode()}'


def thumbnail(path: Path) -> Optional[str]:
    """A small version of an image; None if it cannot be read."""
    check_image_file(str(path))
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        return None
    factor = min(1.0, SIDE / max(image.shape[:2]))
    if factor < 1:
        image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    return data_uri(image, '.jpg', (cv2.IMWRITE_JPEG_QUALITY, QUALITY))


def outline(item: dict) -> List[List[int]]:
    """The polygons of a mask, as rounded coordinates; empty if there is none."""
    mask = item.get('segmentation')
    if not mask:
        return []
    if isinstance(mask, list):
        return [[round(value) for value in polygon] for polygon in mask]
    from pycocotools import mask as run_lengths
    if isinstance(mask['counts'], list):
        mask = run_lengths.frPyObjects(mask, *mask['size'])
    contours, _ = cv2.findContours(run_lengths.decode(mask).astype(np.uint8), cv2.RETR_EXTERNAL,
                                   cv2.CHAIN_APPROX_SIMPLE)
    contours = [cv2.approxPolyDP(contour, 1.0, True).ravel().tolist() for contour in contours]
    return [contour for contour in contours if len(contour) >= 6]


def _boxes(boxes: Any, marks: np.ndarray, with_masks: bool) -> List[list]:
    """[x, y, width, height, label, mark, score, polygons] of each box."""
    rows = []
    for number, item in enumerate(boxes.items):
        rows.append([*(round(float(value), 1) for value in item['bbox']),
                     int(boxes.labels[number]), int(marks[number]),
                     round(float(boxes.scores[number]), 3),
                     outline(item) if with_masks else []])
    return rows


def picture(truth: Truth, image_id: int, matches: List[Optional[Dict[int, Match]]]
            ) -> Optional[Dict[str, Any]]:
    """All that the page needs to draw one image; None if it cannot be read.

    Args:
        truth: The validation set.
        image_id: Of the image.
        matches: Of each run; None for a run without detections.
    """
    image = truth.coco.imgs[image_id]
    content = thumbnail(truth.images / image['file_name'])
    if content is None:
        return None
    return dict(
        name=image['file_name'], width=image['width'], height=image['height'], image=content,
        truth=[_of_run(run, image_id, 'truth') for run in matches],
        found=[_of_run(run, image_id, 'found') for run in matches],
        badness=[round(run[image_id].badness, 4) if run else None for run in matches])


def _of_run(run: Optional[Dict[int, Match]], image_id: int, side: str) -> List[list]:
    """The boxes of a run's truth or of what it found; masks if the run finds masks."""
    if run is None:
        return []
    match = run[image_id]
    with_masks = any('segmentation' in item for item in match.found.items)
    if side == 'truth':
        return _boxes(match.truth, match.outcomes, with_masks)
    return _boxes(match.found, match.kinds, with_masks)
