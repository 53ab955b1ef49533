"""Detectors as plain functions from images to detections, without mmdet's data structures.

:func:`exportable` returns a module that torch.export and ONNX can trace for any number and
size of images. It computes what ``detector.predict`` does, for all images at once.
"""
from typing import Any, List, Tuple

import torch
from mmdet.models.dense_heads import AnchorHead, RPNHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import SingleStageDetector, TwoStageDetector
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import BBoxHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder
from torch import Tensor, nn

from .boxes import best, decode, drop_small, select
from .errors import ExportError
from .operators import NEVER, align_regions, where_equal

# Boxes, scores, labels, number of the image and, with a mask head, masks.
Detections = Tuple[Tensor, ...]


def exportable(detector: nn.Module) -> nn.Module:
    """Return a detector in a form that can be exported.

    Args:
        detector: Faster R-CNN, Mask R-CNN, RetinaNet, or another detector of the same parts.

    Returns:
        nn.Module: Shares the weights of the detector.
    """
    if isinstance(detector, TwoStageDetector):
        return TwoStage(detector).eval()
    if isinstance(detector, SingleStageDetector):
        return OneStage(detector).eval()
    raise ExportError(f'{type(detector).__name__} cannot be exported; Faster R-CNN, Mask R-CNN '
                      'and RetinaNet can')


def _check(part: Any, base: type, *methods: str) -> Any:
    """Require that a part computes what its base class does.

    Args:
        part: A head, an extractor or a coder.
        base: The class whose methods are exported.
        methods: Names of methods that must not be overridden.
    """
    same = isinstance(part, base) and all(
        getattr(type(part), name) is getattr(base, name) for name in methods)
    if not same:
        raise ExportError(f'{type(part).__name__} cannot be exported: it is not a '
                          f'{base.__name__} with the computation of mmdet\'s {base.__name__}')
    return part


def _iou_threshold(nms: dict) -> float:
    """The threshold of a config of non-maximum suppression."""
    unknown = set(nms) - {'type', 'iou_threshold', 'split_thr'}
    if nms.get('type') != 'nms' or unknown:
        raise ExportError(f'nms={dict(nms)} cannot be exported; type "nms" with an '
                          'iou_threshold can')
    return float(nms['iou_threshold'])


def _coder(head: nn.Module) -> DeltaXYWHBBoxCoder:
    """The box coder of a head whose scores are a sigmoid or a softmax."""
    if getattr(head.loss_cls, 'custom_cls_channels', False):
        raise ExportError(f'{type(head.loss_cls).__name__} cannot be exported: it has scores of '
                          'its own')
    coder = _check(head.bbox_coder, DeltaXYWHBBoxCoder, 'decode')
    if coder.add_ctr_clamp:
        raise ExportError('bbox_coder.add_ctr_clamp=True cannot be exported')
    return coder


class DenseCandidates(nn.Module):
    """The best anchors of every level of a dense head, decoded.

    Args:
        head: An anchor head.
        cfg: Its test settings.
    """

    def __init__(self, head: AnchorHead, cfg: Any) -> None:
        super().__init__()
        self.head, self.cfg = head, cfg
        self.coder = _coder(head)

    def forward(self, features: Tuple[Tensor, ...], sizes: Tensor) -> Tuple[Tensor, ...]:
        """Score the anchors and decode the best ones.

        Args:
            features: Levels, each of shape (B, C, H, W).
            sizes: Height and width of the images, shape (B, 2).

        Returns:
            tuple[Tensor, ...]: Boxes (B, N, 4), scores, labels and levels (B, N).
        """
        outputs = self.head(features)
        priors = self.head.prior_generator.grid_priors(
            [scores.shape[-2:] for scores in outputs[0]], device=sizes.device)
        levels = [self._level(*level) for level in zip(*outputs, priors, strict=True)]
        deltas, priors, scores, labels = (torch.cat(parts, 1)
                                          for parts in zip(*levels, strict=True))
        boxes = decode(self.coder, priors, deltas, sizes.unsqueeze(1))
        scores = drop_small(boxes, scores, self.cfg.get('min_bbox_size', -1))
        numbers = [torch.full_like(level[3][:1], number) for number, level in enumerate(levels)]
        return boxes, scores, labels, torch.cat(numbers, 1)

    def _level(self, scores: Tensor, deltas: Tensor, priors: Tensor) -> List[Tensor]:
        """The best anchors of one level: deltas, priors, scores and labels."""
        classes = self.head.cls_out_channels
        scores = scores.permute(0, 2, 3, 1).reshape(scores.shape[0], -1, classes)
        deltas = deltas.permute(0, 2, 3, 1).reshape(deltas.shape[0], -1, 4)
        if self.head.use_sigmoid_cls:
            scores = scores.sigmoid()
        else:
            scores, classes = scores.softmax(-1)[..., :-1], classes - 1
        scores, index = best(scores.flatten(1), self.cfg.get('nms_pre', -1))
        anchor = torch.div(index, classes, rounding_mode='floor')
        deltas = deltas.gather(1, anchor.unsqueeze(-1).expand(-1, -1, 4))
        return [deltas, priors[anchor], scores, index - anchor * classes]


class OneStage(nn.Module):
    """A detector with an anchor head, such as RetinaNet.

    Args:
        detector: As mmdet built it.
    """

    def __init__(self, detector: SingleStageDetector) -> None:
        super().__init__()
        self.detector = detector
        head = _check(detector.bbox_head, AnchorHead, 'predict_by_feat')
        _check(head, BaseDenseHead, '_predict_by_feat_single', '_bbox_post_process')
        self.cfg = head.test_cfg
        self.iou_threshold = _iou_threshold(self.cfg.nms)
        self.candidates = DenseCandidates(head, self.cfg)
        self.outputs = ('boxes', 'scores', 'labels', 'image')

    def forward(self, images: Tensor, sizes: Tensor) -> Detections:
        """Detect objects.

        Args:
            images: As the network expects them, padded at the right and at the bottom,
                shape (B, 3, H, W).
            sizes: Height and width of each image without padding, shape (B, 2).

        Returns:
            tuple[Tensor, ...]: Boxes (D, 4), scores, labels and the number of the image (D,).
        """
        boxes, scores, labels, _ = self.candidates(self.detector.extract_feat(images), sizes)
        image, index = select(boxes, scores, labels, self.iou_threshold,
                              self.cfg.get('score_thr', 0), self.cfg.max_per_img)
        return boxes[image, index], scores[image, index], labels[image, index], image


class RoIFeatures(nn.Module):
    """Features of regions, each from the level that fits its size.

    Args:
        extractor: As mmdet built it.
    """

    def __init__(self, extractor: SingleRoIExtractor) -> None:
        super().__init__()
        self.extractor = _check(extractor, SingleRoIExtractor, 'forward', 'map_roi_levels')
        for layer in extractor.roi_layers:
            if type(layer).__name__ != 'RoIAlign' or layer.pool_mode != 'avg':
                raise ExportError(f'{layer} cannot be exported; RoIAlign with pool_mode="avg" can')

    def forward(self, features: Tuple[Tensor, ...], boxes: Tensor, image: Tensor
                ) -> Tuple[Tensor, Tensor]:
        """Extract features.

        Args:
            features: Levels, each of shape (B, C, H, W).
            boxes: Shape (M, 4).
            image: The number of the image of each box, shape (M,).

        Returns:
            tuple[Tensor, Tensor]: Features, shape (M, C, h, w), in order of the levels, and
            the index of the box of each, shape (M,).
        """
        layers = self.extractor.roi_layers
        rois = torch.cat([image.unsqueeze(1).to(boxes.dtype), boxes], 1)
        levels = self.extractor.map_roi_levels(rois, len(layers))
        index = [where_equal(levels, number) for number in range(len(layers))]
        found = [align_regions(level, boxes[chosen], image[chosen], *layer.output_size,
                               layer.spatial_scale, layer.sampling_ratio, layer.aligned)
                 for level, chosen, layer in zip(features, index, layers, strict=False)]
        return torch.cat(found), torch.cat(index)


class TwoStage(nn.Module):
    """A detector with proposals and a box head, and a mask head or none.

    Args:
        detector: Faster R-CNN or Mask R-CNN, as mmdet built it.
    """

    def __init__(self, detector: TwoStageDetector) -> None:
        super().__init__()
        self.detector = detector
        rpn = _check(detector.rpn_head, RPNHead, '_predict_by_feat_single', '_bbox_post_process')
        roi_head = _check(detector.roi_head, StandardRoIHead, 'predict_bbox', 'predict_mask')
        _check(roi_head.bbox_head, BBoxHead, 'predict_by_feat', '_predict_by_feat_single')
        if roi_head.with_shared_head:
            raise ExportError('a roi_head with a shared_head cannot be exported')
        self.rpn_cfg, self.cfg = rpn.test_cfg, roi_head.test_cfg
        self.rpn_iou_threshold = _iou_threshold(self.rpn_cfg.nms)
        self.iou_threshold = _iou_threshold(self.cfg.nms)
        self.candidates = DenseCandidates(rpn, self.rpn_cfg)
        self.coder = _coder(roi_head.bbox_head)
        self.box_features = RoIFeatures(roi_head.bbox_roi_extractor)
        self.outputs: Tuple[str, ...] = ('boxes', 'scores', 'labels', 'image')
        if roi_head.with_mask:
            _check(roi_head.mask_head, FCNMaskHead, 'predict_by_feat', '_predict_by_feat_single')
            self.mask_features = RoIFeatures(roi_head.mask_roi_extractor)
            self.outputs += ('masks',)

    def forward(self, images: Tensor, sizes: Tensor) -> Detections:
        """Detect objects.

        Args:
            images: As the network expects them, padded at the right and at the bottom,
                shape (B, 3, H, W).
            sizes: Height and width of each image without padding, shape (B, 2).

        Returns:
            tuple[Tensor, ...]: Boxes (D, 4), scores, labels and the number of the image (D,).
            With a mask head also the masks within the boxes, as probabilities (D, h, w).
        """
        features = self.detector.extract_feat(images)
        boxes, image, slot = self._proposals(features, sizes)
        boxes, scores, labels, image = self._detections(features, boxes, image, slot, sizes)
        if 'masks' not in self.outputs:
            return boxes, scores, labels, image
        return boxes, scores, labels, image, self._masks(features, boxes, labels, image)

    def _proposals(self, features: Tuple[Tensor, ...], sizes: Tensor) -> Tuple[Tensor, ...]:
        """Propose regions.

        Returns:
            tuple[Tensor, ...]: Boxes (M, 4), the number of the image (M,), and the place of
            each box if all images had the largest number of proposals (M,).
        """
        boxes, scores, _, levels = self.candidates(features, sizes)
        limit = self.rpn_cfg.max_per_img
        image, index = select(boxes, scores, levels, self.rpn_iou_threshold, NEVER / 2, limit)
        numbers = torch.arange(sizes.shape[0], device=image.device)
        is_of_image = (image.unsqueeze(1) == numbers).long()
        place = (is_of_image.cumsum(0) * is_of_image).sum(1) - 1
        return boxes[image, index], image, image * limit + place

    def _detections(self, features: Tuple[Tensor, ...], boxes: Tensor, image: Tensor,
                    slot: Tensor, sizes: Tensor) -> Detections:
        """Classify and refine proposals."""
        head = self.detector.roi_head.bbox_head
        regions, order = self.box_features(features, boxes, image)
        scores, deltas = head(regions)
        scores = scores.softmax(-1)[:, :-1]
        boxes, image, slot = boxes[order], image[order], slot[order]
        deltas = deltas.reshape(-1, 1 if head.reg_class_agnostic else head.num_classes, 4)
        boxes = decode(self.coder, boxes.unsqueeze(1), deltas, sizes[image].unsqueeze(1))
        return self._best_of_classes(boxes.expand(-1, head.num_classes, 4), scores, slot,
                                     sizes.shape[0])

    def _best_of_classes(self, boxes: Tensor, scores: Tensor, slot: Tensor, images: int
                         ) -> Detections:
        """Suppress detections within each class.

        Args:
            boxes: Shape (M, C, 4).
            scores: Shape (M, C).
            slot: The place of each proposal among all places, shape (M,).
            images: The number of images.
        """
        classes, limit = boxes.shape[1], self.rpn_cfg.max_per_img
        boxes = boxes.new_zeros(images * limit, classes, 4).index_put((slot,), boxes)
        scores = scores.new_full((images * limit, classes), NEVER).index_put((slot,), scores)
        boxes, scores = boxes.view(images, -1, 4), scores.view(images, -1)
        labels = torch.arange(classes, device=slot.device).repeat(limit)
        image, index = select(boxes, scores, labels.unsqueeze(0), self.iou_threshold,
                              self.cfg.score_thr, self.cfg.max_per_img)
        return boxes[image, index], scores[image, index], labels[index], image

    def _masks(self, features: Tuple[Tensor, ...], boxes: Tensor, labels: Tensor, image: Tensor
               ) -> Tensor:
        """The mask of each detection within its box, shape (D, h, w)."""
        head = self.detector.roi_head.mask_head
        regions, order = self.mask_features(features, boxes, image)
        masks = head(regions).sigmoid()[order.argsort()]
        chosen = torch.zeros_like(labels) if head.class_agnostic else labels
        return masks.gather(1, chosen.view(-1, 1, 1, 1).expand(-1, 1, *masks.shape[2:])).squeeze(1)
