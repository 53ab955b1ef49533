"""The operators of detectors that an exported graph has as single nodes.

torch.export sees their outputs as tensors of unknown length. The lengths have a bound, since
torch.onnx cannot represent the sum of unbounded ones.
"""
from typing import Any, Callable, Dict

import torch
from mmcv.ops import nms, roi_align
from torch import Tensor

# Below every score, and below every score threshold: such a candidate is never selected.
NEVER = -1.0
LONGEST = 2**31 - 1


@torch.library.custom_op('mmrla::nms', mutates_args=())
def batch_nms(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float,
              limit: int) -> Tensor:
    """Select boxes of each image, the best first.

    Args:
        boxes: Shape (B, N, 4).
        scores: Shape (B, N).
        iou_threshold: A box that overlaps a better one by more is dropped.
        score_threshold: A box must have a higher score.
        limit: Largest number of boxes of an image.

    Returns:
        Tensor: Pairs of image and box, shape (M, 2), sorted by image.
    """
    selected = []
    for number, (candidates, values) in enumerate(zip(boxes, scores, strict=True)):
        valid = (values > score_threshold).nonzero().flatten()
        kept = valid[nms(candidates[valid], values[valid], iou_threshold)[1][:limit]]
        selected.append(torch.stack([torch.full_like(kept, number), kept], 1))
    return torch.cat(selected)


@batch_nms.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float,
      limit: int) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size(min=0, max=LONGEST)
    return boxes.new_empty((count, 2), dtype=torch.int64)


@torch.library.custom_op('mmrla::where_equal', mutates_args=())
def where_equal(values: Tensor, number: int) -> Tensor:
    """The places of a number.

    Args:
        values: Shape (M,).
        number: What is searched for.

    Returns:
        Tensor: Indices, shape (L,).
    """
    return (values == number).nonzero().squeeze(1)


@where_equal.register_fake
def _(values: Tensor, number: int) -> Tensor:
    count = torch.library.get_ctx().new_dynamic_size(min=0, max=LONGEST)
    return values.new_empty((count,), dtype=torch.int64)


@torch.library.custom_op('mmrla::roi_align', mutates_args=())
def align_regions(features: Tensor, boxes: Tensor, image: Tensor, height: int, width: int,
                  scale: float, sampling_ratio: int, aligned: bool) -> Tensor:
    """Average features within regions.

    Args:
        features: Shape (B, C, H, W).
        boxes: The regions, shape (M, 4).
        image: The number of the image of each region, shape (M,).
        height: Height of the output.
        width: Width of the output.
        scale: From coordinates of boxes to those of features.
        sampling_ratio: Samples in each direction, or 0 for as many as the region has pixels.
        aligned: Whether pixels have their centers at halves.

    Returns:
        Tensor: Shape (M, C, height, width).
    """
    rois = torch.cat([image.unsqueeze(1).to(boxes.dtype), boxes], 1)
    return roi_align(features, rois, (height, width), scale, sampling_ratio, 'avg', aligned)


@align_regions.register_fake
def _(features: Tensor, boxes: Tensor, image: Tensor, height: int, width: int, scale: float,
      sampling_ratio: int, aligned: bool) -> Tensor:
    return features.new_empty((boxes.shape[0], features.shape[1], height, width))


def onnx_translations() -> Dict[Callable, Any]:
    """The operators for ``torch.onnx.export(custom_translation_table=...)``."""
    from onnxscript import opset18 as op

    def nms_to_onnx(boxes: Any, scores: Any, iou_threshold: float, score_threshold: float,
                    limit: int) -> Any:
        selected = op.NonMaxSuppression(
            boxes, op.Unsqueeze(scores, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[limit]), op.Constant(value_floats=[iou_threshold]),
            op.Constant(value_floats=[score_threshold]))
        return op.Gather(selected, op.Constant(value_ints=[0, 2]), axis=1)

    def where_equal_to_onnx(values: Any, number: int) -> Any:
        found = op.NonZero(op.Equal(values, op.Constant(value_int=number)))
        return op.Squeeze(found, op.Constant(value_ints=[0]))

    def roi_align_to_onnx(features: Any, boxes: Any, image: Any, height: int, width: int,
                          scale: float, sampling_ratio: int, aligned: bool) -> Any:
        return op.RoiAlign(
            features, boxes, image, output_height=height, output_width=width,
            spatial_scale=scale, sampling_ratio=sampling_ratio, mode='avg',
            coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel')

    return {torch.ops.mmrla.nms.default: nms_to_onnx,
            torch.ops.mmrla.where_equal.default: where_equal_to_onnx,
            torch.ops.mmrla.roi_align.default: roi_align_to_onnx}
