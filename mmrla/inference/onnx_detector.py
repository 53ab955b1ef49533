"""A detector in an ONNX file: images in, detections out.

This file needs onnxruntime, numpy and OpenCV, and nothing else. Copy it to a machine without
torch and mmdet, or run it::

    python onnx_detector.py model.onnx photo.jpg
"""
import json
import sys
from typing import Any, Dict, List, Sequence, Tuple

import cv2
import numpy as np
import onnxruntime

KEYS = ('classes', 'preprocessing')


class OnnxDetector:
    """A detector that ``mmrla export`` wrote.

    Args:
        path: The file.
        threads: Threads of a layer; 0 for onnxruntime's own choice.

    Attributes:
        classes: Names of the classes, by label.
        about: All metadata of the file.
    """

    def __init__(self, path: str, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=onnxruntime.get_available_providers())
        stored = self.session.get_modelmeta().custom_metadata_map
        missing = [key for key in KEYS if key not in stored]
        if missing:
            raise ValueError(f'its metadata has no {missing[0]!r}')
        self.about: Dict[str, Any] = {key: json.loads(value) for key, value in stored.items()}
        self.classes: List[str] = self.about['classes']
        self.steps: Dict[str, Any] = self.about['preprocessing']

    def __call__(self, images: Sequence[np.ndarray]) -> List[Dict[str, np.ndarray]]:
        """Detect objects.

        Args:
            images: Each of shape (H, W, 3), uint8, BGR, as OpenCV reads them.

        Returns:
            list[dict]: For each image ``boxes`` (D, 4) in pixels of the image, ``scores`` and
            ``labels`` (D,), the best first. With a mask head also ``masks`` (D, H, W), bool.
        """
        if self.steps['inside']:
            return [found for image in images
                    for found in self._results(self._run(images=image[None]), [image], [1.0])]
        batch, sizes, factors = self._prepare(images)
        return self._results(self._run(images=batch, sizes=sizes), images, factors)

    def _run(self, **inputs: np.ndarray) -> Dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))

    def _prepare(self, images: Sequence[np.ndarray]) -> Tuple[np.ndarray, np.ndarray, list]:
        """Scale, normalise and pad images to one batch."""
        scaled = [self._scale(image) for image in images]
        sizes = np.array([image.shape[:2] for image in scaled], np.int64)
        divisor = self.steps['pad_divisor']
        height, width = -(-sizes.max(0) // divisor) * divisor
        batch = np.zeros((len(images), 3, height, width), np.float32)
        for place, image in zip(batch, scaled, strict=True):
            place[:, :image.shape[0], :image.shape[1]] = self._normalise(image)
        factors = [np.array([new.shape[1] / old.shape[1], new.shape[0] / old.shape[0]] * 2)
                   for new, old in zip(scaled, images, strict=True)]
        return batch, sizes, factors

    def _scale(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        long_side, short_side = self.steps['scale']
        factor = min(long_side / max(height, width), short_side / min(height, width))
        return cv2.resize(image, (int(width * factor + 0.5), int(height * factor + 0.5)),
                          interpolation=cv2.INTER_LINEAR)

    def _normalise(self, image: np.ndarray) -> np.ndarray:
        """Channels first, in the order and with the mean and deviation of the network."""
        ordered = image[..., ::-1] if self.steps['to_rgb'] else image
        mean, std = (np.array(self.steps[key], np.float32) for key in ('mean', 'std'))
        return ((ordered.astype(np.float32) - mean) / std).transpose(2, 0, 1)

    def _results(self, outputs: Dict[str, np.ndarray], images: Sequence[np.ndarray],
                 factors: Sequence[Any]) -> List[Dict[str, np.ndarray]]:
        """Detections by image, in pixels of the image."""
        results = []
        for number, (image, factor) in enumerate(zip(images, factors, strict=True)):
            chosen = outputs['image'] == number
            found = {key: value[chosen] for key, value in outputs.items() if key != 'image'}
            found['boxes'] = (found['boxes'] / factor).astype(np.float32)
            if 'masks' in found:
                found['masks'] = paste(found['masks'], found['boxes'], image.shape[:2],
                                       self.about['mask_threshold'])
            results.append(found)
        return results


def paste(masks: np.ndarray, boxes: np.ndarray, size: Tuple[int, int], threshold: float
          ) -> np.ndarray:
    """Scale masks to their boxes and place them in the image.

    Args:
        masks: Probabilities within the boxes, shape (D, h, w).
        boxes: Shape (D, 4).
        size: Height and width of the image.
        threshold: From this probability on, a pixel belongs to the object.

    Returns:
        np.ndarray: Shape (D, H, W), bool.
    """
    pasted = np.zeros((len(masks), *size), bool)
    for target, mask, (x1, y1, x2, y2) in zip(pasted, masks, boxes, strict=True):
        rows, down = _weights(y1, y2, size[0], mask.shape[0])
        columns, across = _weights(x1, x2, size[1], mask.shape[1])
        target[rows, columns] = down @ mask @ across.T >= threshold
    return pasted


def _weights(first: float, last: float, length: int, count: int) -> Tuple[slice, np.ndarray]:
    """Weights of linear interpolation along one axis, with zeros outside of the mask.

    Args:
        first: Where the box begins.
        last: Where it ends.
        length: Length of the image.
        count: Length of the mask.

    Returns:
        tuple[slice, np.ndarray]: The pixels, and the weight of each value of the mask for each
        pixel.
    """
    start, stop = max(int(first) - 1, 0), min(int(np.ceil(last)) + 1, length)
    pixels = np.arange(start, stop, dtype=np.float32) + 0.5
    places = (pixels - first) / max(last - first, 1e-6) * count - 0.5
    weights = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(count)))
    return slice(start, stop), weights.astype(np.float32)


def main() -> None:
    """Print the detections of images."""
    detector = OnnxDetector(sys.argv[1])
    for path in sys.argv[2:]:
        found, = detector([cv2.imread(path)])
        for box, score, label in zip(found['boxes'], found['scores'], found['labels'],
                                     strict=True):
            print(path, detector.classes[label], f'{score:.3f}', *(f'{x:.1f}' for x in box))


if __name__ == '__main__':
    main()
