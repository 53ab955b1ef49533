"""Boxes, masks and class names on an image, drawn by OpenCV.

mmdet's visualizer draws with matplotlib, which takes longer than a small detector needs for
the image. The colours are mmdet's.
"""
from typing import Any, List, Sequence, Tuple

import cv2
import numpy as np
from mmdet.visualization.palette import get_palette
from mmengine.structures import InstanceData

ALPHA = 0.45


def colors_of(palette: Any, count: int) -> List[Tuple[int, int, int]]:
    """A colour in BGR for each class.

    Args:
        palette: What mmdet takes: a list of RGB colours, ``'random'``, or a name.
        count: The number of classes.
    """
    return [tuple(int(value) for value in color[::-1]) for color in get_palette(palette, count)]


def draw_instances(image: np.ndarray, found: InstanceData, classes: Sequence[str],
                   colors: Sequence[Tuple[int, int, int]]) -> np.ndarray:
    """Draw detections.

    Args:
        image: Shape (H, W, 3), BGR; left as it is.
        found: With ``bboxes``, ``labels``, ``scores`` and possibly ``masks``, as arrays.
        classes: Names of the classes.
        colors: Of the classes, in BGR.

    Returns:
        np.ndarray: A picture of the same shape.
    """
    picture = np.ascontiguousarray(image).copy()
    order = np.argsort(found.scores)  # the best are drawn last, on top
    if 'masks' in found:
        for number in order:
            _draw_mask(picture, found.masks[number].astype(bool), colors[found.labels[number]])
    unit = max(picture.shape[:2]) / 640
    for number in order:
        label = int(found.labels[number])
        text = f'{classes[label]} {100 * found.scores[number]:.0f}'
        _draw_box(picture, found.bboxes[number], text, colors[label], unit)
    return picture


def _draw_mask(picture: np.ndarray, mask: np.ndarray, color: Tuple[int, int, int]) -> None:
    picture[mask] = ((1 - ALPHA) * picture[mask] + ALPHA * np.array(color)).astype(np.uint8)


def _draw_box(picture: np.ndarray, box: np.ndarray, text: str, color: Tuple[int, int, int],
              unit: float) -> None:
    x1, y1, x2, y2 = (int(round(float(value))) for value in box)
    cv2.rectangle(picture, (x1, y1), (x2, y2), color, max(1, round(2 * unit)), cv2.LINE_AA)
    scale, thickness = max(0.35, 0.5 * unit), max(1, round(unit))
    (width, height), base = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, thickness)
    top = y1 - height - base if y1 - height - base >= 0 else y1
    cv2.rectangle(picture, (x1, top), (x1 + width, top + height + base), color, -1)
    bright = sum(color) > 380
    cv2.putText(picture, text, (x1, top + height), cv2.FONT_HERSHEY_SIMPLEX, scale,
                (0, 0, 0) if bright else (255, 255, 255), thickness, cv2.LINE_AA)
