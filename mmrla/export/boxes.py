"""Boxes of a batch of images, in operations that can be exported."""
from typing import Tuple

import numpy as np
import torch
from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder
from torch import Tensor
from torch.nn import functional as F

from .operators import NEVER, batch_nms


def decode(coder: DeltaXYWHBBoxCoder, priors: Tensor, deltas: Tensor, sizes: Tensor) -> Tensor:
    """Apply deltas to boxes and clip the result to the images.

    ``coder.decode`` computes the same for one image. It branches on the number of boxes,
    which an exported graph does not know.

    Args:
        coder: Has the means and standard deviations of the deltas.
        priors: Shape (..., 4).
        deltas: Shape (..., 4).
        sizes: Height and width of the image of each box, shape (..., 2).

    Returns:
        Tensor: Shape (..., 4).
    """
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    limit = float(np.abs(np.log(16 / 1000)))  # the default of mmdet's coder
    center = (priors[..., :2] + priors[..., 2:]) / 2
    extent = priors[..., 2:] - priors[..., :2]
    center = center + extent * deltas[..., :2]
    extent = extent * deltas[..., 2:].clamp(-limit, limit).exp()
    boxes = torch.cat([center - extent / 2, center + extent / 2], -1)
    if not coder.clip_border:
        return boxes
    largest = sizes.flip(-1).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), torch.cat([largest, largest], -1))


def drop_small(boxes: Tensor, scores: Tensor, smallest: float) -> Tensor:
    """The scores, with those of boxes that are not larger than ``smallest`` set to NEVER."""
    if smallest < 0:
        return scores
    extent = boxes[..., 2:] - boxes[..., :2]
    return torch.where((extent > smallest).all(-1), scores, NEVER)


def best(scores: Tensor, count: int) -> Tuple[Tensor, Tensor]:
    """The best candidates of each image, always the same number.

    Args:
        scores: Shape (B, N), where N may be smaller than ``count``.
        count: How many; 0 or less for all.

    Returns:
        tuple[Tensor, Tensor]: Scores and indices, shape (B, count). Where there are too few
        candidates, the score is NEVER.
    """
    if count <= 0:
        return scores, torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    values, index = F.pad(scores, (0, count), value=NEVER).topk(count)
    return values, torch.where(values == NEVER, 0, index)


def select(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float,
           score_threshold: float, limit: int) -> Tuple[Tensor, Tensor]:
    """Non-maximum suppression within each group of each image.

    Boxes of different groups are moved apart, as mmcv's ``batched_nms`` does it.

    Args:
        boxes: Shape (B, N, 4).
        scores: Shape (B, N).
        groups: The class or level of each box, shape (B, N) or (1, N).
        iou_threshold: See :func:`~mmrla.export.operators.batch_nms`.
        score_threshold: See there.
        limit: Largest number of boxes of an image, of all groups.

    Returns:
        tuple[Tensor, Tensor]: Image and index of each selected box, shape (M,). Sorted by
        image, the best box first.
    """
    is_candidate = (scores > score_threshold).unsqueeze(-1)
    distance = torch.where(is_candidate, boxes, 0).amax((1, 2), keepdim=True) + 1
    moved = boxes + groups.unsqueeze(-1).to(boxes.dtype) * distance
    image, index = batch_nms(moved, scores, iou_threshold, score_threshold, limit).unbind(1)
    return image, index
