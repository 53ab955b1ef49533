"""Checking that the annotation files of evaluators exist."""
from pathlib import Path
from typing import Iterator, Tuple

from mmengine.config import Config

from mmrla.datasets.errors import DataError


def check_annotation_files(cfg: Config, name: str) -> None:
    """Raise a ``DataError`` if an evaluator names an annotation file that does not exist.

    mmdet's ``CocoMetric`` raises a ``FileNotFoundError`` that does not name the
    setting, and only when the evaluator is built. Files on a remote backend
    are not checked.

    Args:
        cfg: The config of a run.
        name: ``val_evaluator`` or ``test_evaluator``.
    """
    for key, path in _annotation_files(cfg, name):
        if not Path(path).is_file():
            raise DataError(f'{key}: annotation file {path} does not exist. Correct the path in '
                            f'the config or with --cfg-options {key}=PATH')


def _annotation_files(cfg: Config, name: str) -> Iterator[Tuple[str, str]]:
    """Yield the key and the path of each local annotation file."""
    evaluator = cfg.get(name)
    is_list = isinstance(evaluator, (list, tuple))
    for index, metric in enumerate(evaluator if is_list else [evaluator]):
        if not isinstance(metric, dict) or metric.get('backend_args'):
            continue
        path = metric.get('ann_file')
        if isinstance(path, str) and '://' not in path:
            yield f'{name}.{index}.ann_file' if is_list else f'{name}.ann_file', path
