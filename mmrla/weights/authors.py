"""The weights that the authors of the paper published, with the figures that their README states.

The figures are the README's, not the paper's; a few differ. The authors publish no checksums.
"""
from typing import Dict, NamedTuple


class AuthorsFile(NamedTuple):
    """A published file.

    Attributes:
        name: The name after ``authors://``.
        drive_id: The file's id on Google Drive.
        task: ``'ImageNet'`` for a classifier, ``'COCO'`` for a detector.
        figures: The results in percent: top-1 and top-5 error, or box AP, AP50 and AP75.
    """
    name: str
    drive_id: str
    task: str
    figures: Dict[str, float]

    @property
    def file_name(self) -> str:
        """The name of the file in the cache."""
        return self.name + ('.pth.tar' if self.task == 'ImageNet' else '.pth')

    @property
    def url(self) -> str:
        """The address of the file itself; mim names a download after the last part."""
        return ('https://drive.usercontent.google.com/download?export=download&confirm=t'
                f'&id={self.drive_id}#/{self.file_name}')


def _imagenet(name: str, drive_id: str, top1_error: float, top5_error: float) -> AuthorsFile:
    return AuthorsFile(name, drive_id, 'ImageNet',
                       dict(top1_error=top1_error, top5_error=top5_error))


def _coco(name: str, drive_id: str, box_ap: float, ap50: float, ap75: float) -> AuthorsFile:
    return AuthorsFile(name, drive_id, 'COCO', dict(box_AP=box_ap, AP50=ap50, AP75=ap75))


AUTHORS_FILES: Dict[str, AuthorsFile] = {file.name: file for file in (
    _imagenet('resnet50_rla_2283',
              '1cetP1SdOiwznLxlBUaHG8Q8c4RIwToWW', 22.83, 6.58),
    _imagenet('ecanet50_rla_2215',
              '173qoDPGe2q5l7CKVm54-_xJtg3_UFRR-', 22.15, 6.11),
    _imagenet('resnet101_rla_2148',
              '1V9Iv0KbN1O92ll8rcf45kLkD9EOA9VCE', 21.48, 5.8),
    _imagenet('ecanet101_rla_2100',
              '1QMR_yf0RYugpJosCSo0uNRBmfl2e7cGa', 21.0, 5.51),
    _imagenet('dsrla_mobilenetv2_k32_2762',
              '1yg9hsACBHZFT5R8s95igJTyaQ5iYKklV', 27.62, 9.18),
    _imagenet('dsrla_mobilenetv2_k32_eca_2707',
              '1JdEkJg9_IOnJsHWKVPQ-4YHBVabiNJXD', 27.07, 8.89),
    _coco('faster_rcnn_r50rla_fpn_1x_coco_388',
          '16yqHnLT2ZZuLTcLDejyi7fsxPRuh36hN', 38.8, 59.6, 42.0),
    _coco('faster_rcnn_r50rlaeca_fpn_1x_coco_398',
          '1oLZtRCNr0x8c6xACS41znmWKsm2SnqEw', 39.8, 61.2, 43.2),
    _coco('faster_rcnn_r101rla_fpn_1x_coco_412',
          '15UqsMFKPSeBWnr-v7fy8Q2qidkj5_9Rj', 41.2, 61.8, 44.9),
    _coco('faster_rcnn_r101rlaeca_fpn_1x_coco_421',
          '1OhiVpiwohQG436ruUyV683xzmdfYV9el', 42.1, 63.3, 46.1),
    _coco('retinanet_r50rla_fpn_1x_coco_379',
          '1sbKOUvSV0u1nj1WHSNVzSQTvB8PGIcwy', 37.9, 57.0, 40.8),
    _coco('retinanet_r50rlaeca_fpn_1x_coco_390',
          '1okSs7HzBex9uB_AhKbF9qWq8rW8mEGrw', 39.0, 58.7, 41.7),
    _coco('retinanet_r101rla_fpn_1x_coco_403',
          '1PWKq1AiOf1f9dm_k7zUin9fcsQfKx7U-', 40.3, 59.8, 43.5),
    _coco('retinanet_r101rlaeca_fpn_1x_coco_415',
          '1Hl7mhi-CAPnWR_m2reJug8hzhkokYQpa', 41.5, 61.6, 44.4),
    _coco('mask_rcnn_r50rla_fpn_1x_coco_395',
          '1UrIzo9ZunyjwTRVm6qZmbJtfEJ2Fnqcp', 39.5, 60.1, 43.3),
    _coco('mask_rcnn_r50rlaeca_fpn_1x_coco_406',
          '1i6J0h_5FZDg8BxvGvS1VBbVxHIxmJk4L', 40.6, 61.8, 44.0),
    _coco('mask_rcnn_r101rla_fpn_1x_coco_418',
          '1mGS2R5vx-u9KyQoK1WpyQwx-J7PI9lN2', 41.8, 62.3, 46.2),
    _coco('mask_rcnn_r101rlaeca_fpn_1x_coco_429',
          '1RKkoE8E6n1CG2BDaNuYGLzrxWY9j7XB_', 42.9, 63.6, 46.9),
)}
