"""An ONNX file on images, folders and videos: :class:`OnnxPredictor`."""
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmrla.export.errors import MissingPackageError

from .base_predictor import BasePredictor
from .sources import Frame, InputError


class OnnxPredictor(BasePredictor):
    """Detects objects with a file of ``mmrla export``, in onnxruntime.

    Args:
        path: The file.
        batch_size: How many images the network gets at a time.

    Example:
        >>> from mmrla.inference import OnnxPredictor
        >>> samples = OnnxPredictor('model.onnx')('photos/')  # doctest: +SKIP
    """

    def __init__(self, path: str, batch_size: int = 1) -> None:
        try:
            from .onnx_detector import OnnxDetector
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                f'{error.name} is not installed: pip install onnxruntime') from error
        try:
            self.detector = OnnxDetector(path)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise InputError(f'{path} cannot be used ({str(error).splitlines()[0]}); mmrla export '
                             'writes such files') from error
        about = self.detector.about
        super().__init__(self.detector.classes, about.get('palette', 'random'), batch_size)

    @property
    def name(self) -> str:
        """What detects, for the screen."""
        return f'{self.detector.about.get("detector", "a detector")} in onnxruntime'

    @property
    def device(self) -> torch.device:
        """Where the detector is."""
        provider = self.detector.session.get_providers()[0]
        return torch.device('cuda' if provider.startswith(('CUDA', 'Tensorrt')) else 'cpu')

    def predict_batches(self, batches: Iterator[List[Frame]]
                        ) -> Iterator[Tuple[Frame, DetDataSample]]:
        """Detect objects in batches of images."""
        for frames in batches:
            images = [frame.pixels() for frame in frames]
            for frame, image, found in zip(frames, images, self.detector(images), strict=True):
                yield frame, as_sample(found, image.shape[:2])


def as_sample(found: Dict[str, np.ndarray], size: Tuple[int, int]) -> DetDataSample:
    """Detections as mmdet represents them.

    Args:
        found: See :class:`~mmrla.inference.onnx_detector.OnnxDetector`.
        size: Height and width of the image.
    """
    names: Dict[str, Any] = dict(boxes='bboxes', scores='scores', labels='labels', masks='masks')
    instances = InstanceData(**{names[key]: torch.from_numpy(value)
                                for key, value in found.items()})
    sample = DetDataSample(metainfo=dict(ori_shape=size, img_shape=size))
    sample.pred_instances = instances
    return sample
