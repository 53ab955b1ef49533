"""Classification data in class folders, with checks while it is read."""
import logging
import multiprocessing
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from mmcv.transforms import LoadImageFromFile
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import DATASETS, HOOKS, TRANSFORMS

from .errors import DataError, reason

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.ppm', '.tif', '.tiff')


@DATASETS.register_module()
class ClassFolders(BaseDataset):
    """Images in one folder per class: ``data_root/{class}/{image}``.

    Args:
        data_root: The folder of the class folders.
        classes: The classes in the order of their labels. The default is the
            sorted folder names. If classes are given, a folder with another
            name and a class without a folder are errors, because they would
            shift the labels.
        **kwargs: Arguments of mmengine's ``BaseDataset``.
    """

    def __init__(self, data_root: str, classes: Sequence[str] = (), **kwargs) -> None:
        root = Path(data_root)
        if not root.is_dir():
            raise DataError(f'data_root {data_root} is not a folder')
        found = sorted(path.name for path in root.iterdir() if path.is_dir())
        self._check_classes(root, found, classes)
        super().__init__(data_root=data_root,
                         metainfo=dict(classes=tuple(classes or found)), **kwargs)

    @staticmethod
    def _check_classes(root: Path, found: List[str], classes: Sequence[str]) -> None:
        if not found:
            raise DataError(f'{root} has no class folders')
        for name in found:
            if classes and name not in classes:
                raise DataError(f'{root / name} is not a class folder; the classes are: '
                                f'{", ".join(classes)}')
        for name in classes:
            if name not in found:
                raise DataError(f'{root / name} is missing: class {name!r} has no folder')

    def load_data_list(self) -> List[Dict]:
        """List the images by class and name.

        Returns:
            list[dict]: ``img_path`` and ``gt_label`` of each image.
        """
        data = []
        for label, name in enumerate(self.metainfo['classes']):
            folder = Path(self.data_root) / name
            images = sorted(path for path in folder.iterdir()
                            if path.suffix.lower() in IMAGE_SUFFIXES)
            if not images:
                raise DataError(f'{folder} has no images ({", ".join(IMAGE_SUFFIXES)})')
            data += [dict(img_path=str(path), gt_label=label) for path in images]
        return data


# Number of skipped images, shared by all workers of the data loaders.
_SKIPPED = multiprocessing.Value('l', 0)


@TRANSFORMS.register_module()
class LoadNamedImage(LoadImageFromFile):
    """``LoadImageFromFile`` of mmcv with errors that name the file.

    Args:
        *args: Arguments of mmcv's ``LoadImageFromFile``.
        skip_damaged: Skip an image that cannot be read, and count it
            (:class:`SkippedImagesHook`); the data set loads another image
            instead. By default the run stops.
        **kwargs: Arguments of mmcv's ``LoadImageFromFile``.
    """

    def __init__(self, *args, skip_damaged: bool = False, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.skip_damaged = skip_damaged

    def transform(self, results: dict) -> Optional[dict]:
        """Load ``results['img_path']`` into ``results['img']``, (H, W, 3).

        mmpretrain's inferencers read the image themselves. They take mmcv's
        ``LoadImageFromFile`` out of the pipeline, and not this class.
        """
        if 'img' in results and 'img_path' not in results:
            return results
        try:
            return super().transform(results)
        except Exception as error:  # decoders raise many types
            message = f'image {results["img_path"]} cannot be read: {reason(error)}'
            if not self.skip_damaged:
                raise DataError(message) from error
        with _SKIPPED.get_lock():
            _SKIPPED.value += 1
        print_log(f'skipped: {message}', 'current', logging.WARNING)
        return None


@HOOKS.register_module()
class SkippedImagesHook(Hook):
    """Log after every epoch how many images ``LoadNamedImage`` has skipped."""

    def after_train_epoch(self, runner) -> None:
        """Log the count if it is not zero."""
        if _SKIPPED.value:
            runner.logger.warning(f'{_SKIPPED.value} damaged images have been skipped so far')


@HOOKS.register_module()
class CheckLabelsHook(Hook):
    """Stop if a label is outside the classes of the classifier, and name the image.

    Without this check the loss raises an index error that does not name the
    image; on a GPU it is a device-side assertion.
    """

    def before_train(self, runner) -> None:
        """Read the number of classes of the classifier."""
        model = runner.model.module if hasattr(runner.model, 'module') else runner.model
        self.num_classes = model.head.num_classes

    def before_train_iter(self, runner, batch_idx: int, data_batch: dict = None) -> None:
        """Check the labels of a batch."""
        for sample in data_batch['data_samples']:
            for label in sample.gt_label.tolist():
                if not 0 <= label < self.num_classes:
                    name = sample.get('img_path', f'number {sample.get("sample_idx")}')
                    raise DataError(f'image {name} has label {label}, but the head has '
                                    f'num_classes={self.num_classes} (labels 0 to '
                                    f'{self.num_classes - 1})')
