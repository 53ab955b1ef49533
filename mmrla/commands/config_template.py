"""The config that ``mmrla init`` writes."""
import math
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

from mmrla.datasets.conversion import Dataset, Split

from .paths import CONFIGS

# Where each detector has its number of classes.
HEADS = dict(faster_rcnn=('roi_head.bbox_head',),
             mask_rcnn=('roi_head.bbox_head', 'roi_head.mask_head'), retinanet=('bbox_head',))
LARGE = '{detector}_rla_r50_fpn_1x.py'
# Small enough for a CPU. There is one, a Faster R-CNN.
SMALL = 'shapes/faster_rcnn_rla_r18_fpn.py'
BASE_SCALE = (1333, 800)
# A schedule has at least so many iterations, however few images there are.
MIN_ITERATIONS = dict(small=1200, large=3000)
MAX_EPOCHS = 100
PALETTE = 80  # colours that mmdet has for the classes of COCO


class Plan(NamedTuple):
    """What is trained, and how.

    Attributes:
        base: The config to inherit from.
        heads: Paths of the heads that have ``num_classes``.
        scale: (long, short) side that images are scaled to.
        batch: Images per process.
        epochs: Of the schedule.
        is_small: Whether the base is the one for a CPU.
        with_masks: Whether masks are trained.
    """
    base: str
    heads: Tuple[str, ...]
    scale: Tuple[int, int]
    batch: int
    epochs: int
    is_small: bool
    with_masks: bool = False

    @classmethod
    def small(cls, detector: str, scale: Tuple[int, int], images: int, epochs: Optional[int]
              ) -> 'Plan':
        """A detector that a CPU trains in minutes, from random initial values."""
        if detector != 'faster_rcnn':
            raise SystemExit(f'--detector {detector} needs a GPU; without one there is a small '
                             'faster_rcnn only')
        batch = 4
        epochs = epochs or _epochs(MIN_ITERATIONS['small'], images, batch, 8)
        return cls(SMALL, HEADS[detector], scale, batch, epochs, True)

    @classmethod
    def large(cls, detector: str, scale: Tuple[int, int], batch: int, images: int,
              epochs: Optional[int]) -> 'Plan':
        """A ResNet-50 with RLA, from ImageNet weights of the plain network."""
        epochs = epochs or _epochs(MIN_ITERATIONS['large'], images, batch, 12)
        return cls(LARGE.format(detector=detector), HEADS[detector], scale, batch, epochs, False,
                   detector == 'mask_rcnn')

    def __str__(self) -> str:
        weights = 'random initial values' if self.is_small else 'torchvision\'s ResNet-50'
        return (f'{Path(self.base).stem}, from {weights}, images scaled to '
                f'{self.scale[0]} x {self.scale[1]}, batch {self.batch}, {self.epochs} epochs')


def _epochs(iterations: int, images: int, batch: int, least: int) -> int:
    return min(MAX_EPOCHS, max(least, math.ceil(iterations * batch / max(1, images))))


def base_path(name: str) -> str:
    """The path of a config of mmrla, in the clone or in the installed package."""
    return str(CONFIGS / name)


def config_text(dataset: Dataset, plan: Plan, out: Path) -> str:
    """The text of the config.

    Args:
        dataset: What it is for; its parts have annotation files.
        plan: What is trained, and how.
        out: The file, for its comment.
    """
    count = len(dataset.classes)
    train, val = (dataset.splits[name] for name in ('train', 'val'))
    palette = ", palette='random'" if count > PALETTE else ''
    lines = [
        f'# {len(train.content["images"])} images to train on, {len(val.content["images"])} to '
        f'validate on, {count} classes. Written by mmrla init.',
        f'_base_ = {base_path(plan.base)!r}', '',
        f'classes = {_wrapped(dataset.classes)}',
        f'metainfo = dict(_delete_=True, classes=classes{palette})',
        f'model = {_nested(plan.heads, f"num_classes={count}")}', '',
        *_pipelines(plan),
        *_loader('train', train, plan),
        *_loader('val', val, plan),
        'test_dataloader = val_dataloader',
        f'val_evaluator = dict(ann_file={str(val.path.resolve())!r}, classwise=True)',
        'test_evaluator = val_evaluator', '',
        *_schedule(plan)]
    return '\n'.join(lines) + '\n'


def _wrapped(classes: Tuple[str, ...], width: int = 100) -> str:
    """A tuple of names, in lines of at most so many columns."""
    lines, line = [], ''
    for name in classes:
        word = f'{name!r}, '
        if len(line) + len(word) > width - 14 and line:
            lines.append(line.rstrip())
            line = ''
        line += word
    lines.append(line.rstrip())
    return '(' + '\n           '.join(lines) + ')'


def _nested(paths: Tuple[str, ...], setting: str) -> str:
    """``dict(a=dict(b=dict(setting)))`` for paths with the same parents."""
    parents = paths[0].split('.')[:-1]
    text = ', '.join(f'{path.split(".")[-1]}=dict({setting})' for path in paths)
    for parent in reversed(parents):
        text = f'{parent}=dict({text})'
    return f'dict({text})'


def _pipelines(plan: Plan) -> List[str]:
    """The pipelines, where the scale is not the one of the base config."""
    if plan.scale == BASE_SCALE:
        return []
    masks = ', with_mask=True' if plan.with_masks else ''
    load = f"dict(type='LoadAnnotations', with_bbox=True{masks})"
    resize = f"dict(type='Resize', scale={plan.scale}, keep_ratio=True)"
    return [
        "train_pipeline = [",
        f"    dict(type='LoadImageFromFile'), {load},",
        f"    {resize},",
        "    dict(type='RandomFlip', prob=0.5), dict(type='PackDetInputs')]",
        "test_pipeline = [",
        f"    dict(type='LoadImageFromFile'), {resize},",
        f"    {load},",
        "    dict(type='PackDetInputs',",
        "         meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]",
        ""]


def _loader(name: str, split: Split, plan: Plan) -> List[str]:
    pipeline = '' if plan.scale == BASE_SCALE else (
        f', pipeline={"train" if name == "train" else "test"}_pipeline')
    batch = plan.batch if name == 'train' or plan.is_small else 1
    folder = f'{split.images.resolve()}/'
    return [
        f'{name}_dataloader = dict(batch_size={batch}, dataset=dict(',
        f"    data_root='', metainfo=metainfo, ann_file={str(split.path.resolve())!r},",
        f"    data_prefix=dict(img={folder!r}){pipeline}))"]


def _schedule(plan: Plan) -> List[str]:
    """The number of epochs, and where the learning rate falls."""
    interval = max(1, plan.epochs // 6)
    lines = [f'train_cfg = dict(max_epochs={plan.epochs}, val_interval={interval})']
    if plan.is_small:
        return [*lines, 'param_scheduler = [',
                "    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),",
                f"    dict(type='CosineAnnealingLR', T_max={plan.epochs}, eta_min=1e-5,",
                '         convert_to_iter_based=True)]']
    if plan.epochs == 12:
        return lines
    drops = [round(plan.epochs * share) for share in (2 / 3, 11 / 12)]
    return [*lines, 'param_scheduler = [',
            "    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),",
            f"    dict(type='MultiStepLR', begin=0, end={plan.epochs}, by_epoch=True, "
            f'milestones={drops}, gamma=0.1)]']
