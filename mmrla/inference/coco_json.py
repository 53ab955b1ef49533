"""Detections as a COCO-format file.

The file has ``images``, ``categories`` with their names, and ``annotations`` with a
``score``; pycocotools loads it with ``COCO(path)``. To evaluate it against a truth::

    found = COCO(truth).loadRes(json.load(open('predictions.json'))['annotations'])
"""
import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from mmdet.structures import DetDataSample
from mmdet.structures.mask import encode_mask_results
from mmengine.structures import InstanceData

from mmrla.datasets.checks import read_annotations
from mmrla.datasets.errors import DataError
from mmrla.weights.writing import write_file

from .sources import Frame


class CocoWriter:
    """Collects detections and writes them as one COCO-format file.

    Args:
        classes: Names of the classes, by label.
        annotations: A COCO-format file whose ids of images (by file name) and of categories
            (by name) are used. Without it both are counted from 1.
    """

    def __init__(self, classes: Sequence[str], annotations: Optional[str] = None) -> None:
        self.images: List[dict] = []
        self.annotations: List[dict] = []
        self.category_ids = list(range(1, len(classes) + 1))
        self.image_ids: Optional[Dict[str, int]] = None
        if annotations is not None:
            self._take_ids(Path(annotations), classes)
        self.categories = [dict(id=key, name=name)
                           for key, name in zip(self.category_ids, classes, strict=True)]

    def _take_ids(self, path: Path, classes: Sequence[str]) -> None:
        content = read_annotations(path)
        ids = {category['name']: category['id'] for category in content['categories']}
        unknown = [name for name in classes if name not in ids]
        if unknown:
            raise DataError(f'annotations {path} have no category {unknown[0]!r}, which the '
                            'detector has')
        self.category_ids = [ids[name] for name in classes]
        self.image_ids = {image['file_name']: image['id'] for image in content['images']}

    def add(self, frame: Frame, sample: DetDataSample) -> None:
        """Take the detections of one image."""
        height, width = sample.ori_shape[:2]
        image_id = self._image_id(frame.name)
        self.images.append(dict(id=image_id, file_name=frame.name, width=int(width),
                                height=int(height)))
        found = sample.pred_instances.cpu().numpy()
        masks = self._masks(found)
        for number, (box, label, score) in enumerate(
                zip(found.bboxes.tolist(), found.labels.tolist(), found.scores.tolist(),
                    strict=True)):
            x1, y1, x2, y2 = box
            annotation = dict(
                id=len(self.annotations) + 1, image_id=image_id,
                category_id=self.category_ids[label], bbox=[x1, y1, x2 - x1, y2 - y1],
                area=(x2 - x1) * (y2 - y1), iscrowd=0, score=score)
            if masks:
                annotation['segmentation'] = masks[number]
            self.annotations.append(annotation)

    def _image_id(self, name: str) -> int:
        if self.image_ids is None:
            return len(self.images) + 1
        if name not in self.image_ids:
            raise DataError(f'image {name} is not in the annotation file')
        return self.image_ids[name]

    @staticmethod
    def _masks(found: InstanceData) -> List[dict]:
        """Run lengths, with text that JSON can hold."""
        if 'masks' not in found:
            return []
        return [dict(mask, counts=mask['counts'].decode())
                for mask in encode_mask_results(found.masks)]

    def content(self) -> Dict[str, Any]:
        """What is written."""
        return dict(info=dict(description='detections of mmrla predict'), images=self.images,
                    categories=self.categories, annotations=self.annotations)

    def write(self, path: Path) -> None:
        """Write the file; it appears whole or not at all."""
        content = json.dumps(self.content()).encode()
        write_file(path, lambda file: file.write(content))
