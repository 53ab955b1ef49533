"""What all predictors share: inputs, drawing and results."""
from itertools import islice
from typing import Any, Iterable, Iterator, List, Sequence, Tuple, Union

import numpy as np
import torch
from mmdet.structures import DetDataSample

from .drawing import colors_of, draw_instances
from .sources import Frame, Input, Inputs, open_inputs


class BasePredictor:
    """Detects objects in images, folders and videos.

    Args:
        classes: Names of the classes, by label.
        palette: Their colours; see :func:`~mmrla.inference.drawing.colors_of`.
        batch_size: How many images the network gets at a time.
    """

    def __init__(self, classes: Sequence[str], palette: Any, batch_size: int) -> None:
        self.classes: Tuple[str, ...] = tuple(classes)
        self.colors = colors_of(palette, len(self.classes))
        self.batch_size = batch_size

    @property
    def name(self) -> str:
        """What detects, for the screen."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the detector is."""
        raise NotImplementedError

    def predict_batches(self, batches: Iterator[List[Frame]]
                        ) -> Iterator[Tuple[Frame, DetDataSample]]:
        """Detect objects in batches of images."""
        raise NotImplementedError

    def __call__(self, inputs: Union[Input, Iterable[Input]], as_supervision: bool = False
                 ) -> list:
        """Detect objects.

        Args:
            inputs: See :func:`~mmrla.inference.sources.open_inputs`.
            as_supervision: Return ``supervision.Detections`` instead of mmdet's samples.

        Returns:
            list[DetDataSample]: One for each image, with ``pred_instances``.
        """
        samples = [sample for _, sample in self.stream(inputs)]
        return [self.to_supervision(sample) for sample in samples] if as_supervision else samples

    def stream(self, inputs: Union[Input, Iterable[Input], Inputs]
               ) -> Iterator[Tuple[Frame, DetDataSample]]:
        """Detect objects image by image, with no more than a few batches in memory."""
        frames = iter(inputs if isinstance(inputs, Inputs) else open_inputs(inputs))
        return self.predict_batches(iter(lambda: list(islice(frames, self.batch_size)), []))

    def draw(self, frame: Frame, sample: DetDataSample, score: float = 0.3) -> np.ndarray:
        """A picture with boxes, masks and class names.

        Args:
            frame: The image.
            sample: What was found on it.
            score: Detections below this score are left out.

        Returns:
            np.ndarray: Shape (H, W, 3), BGR.
        """
        found = sample.pred_instances
        found = found[found.scores >= score].cpu().numpy()
        return draw_instances(frame.pixels(), found, self.classes, self.colors)

    def to_supervision(self, sample: DetDataSample) -> Any:
        """A sample as ``supervision.Detections``, with class names in its data."""
        try:
            import supervision
        except ImportError as error:
            raise ImportError('supervision is not installed: pip install supervision') from error
        found = supervision.Detections.from_mmdetection(sample.cpu())
        found.data['class_name'] = np.array([self.classes[label] for label in found.class_id])
        return found
