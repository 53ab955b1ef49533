"""A trained detector on images, folders and videos: :class:`Predictor`."""
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from mmdet.apis import DetInferencer
from mmdet.evaluation import get_classes
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from torch import nn

from mmrla.engine.config_text import check_names, config_of_checkpoint
from mmrla.models.lean.fuse import fuse as fuse_model
from mmrla.weights.errors import CheckpointError
from mmrla.weights.loading import PreparedState, has_backbone
from mmrla.weights.reading import weights_key
from mmrla.weights.sources import load_checkpoint

from .base_predictor import BasePredictor
from .checkpoints import find_checkpoint
from .sources import Frame, InputError

# What is read from a config to build a detector and its test pipeline.
NEEDED = ('model', 'test_dataloader')


class _Inferencer(DetInferencer):
    """mmdet's inferencer, which takes a config and a checkpoint that are already read."""

    def __init__(self, cfg: Config, checkpoint: Dict[str, Any], device: Optional[str]) -> None:
        self.checkpoint = checkpoint
        super().__init__(cfg, device=device, scope=cfg.get('default_scope', 'mmdet'),
                         palette='from the checkpoint', show_progress=False)

    def _load_weights_to_model(self, model: nn.Module, checkpoint: None, cfg: Config) -> None:
        load_into(model, self.checkpoint)
        model.dataset_meta = dataset_meta(self.checkpoint, cfg)

    def _init_collate(self, cfg: Config) -> Any:
        def collate(pairs: Iterable[Tuple[Any, dict]]) -> Tuple[list, dict]:
            frames, items = zip(*pairs, strict=True)
            return list(frames), pseudo_collate(items)
        return collate

    def _init_visualizer(self, cfg: Config) -> None:
        return None  # see mmrla.inference.drawing


def load_into(model: nn.Module, checkpoint: Dict[str, Any]) -> None:
    """Load the weights of a checkpoint; every weight of the model must be in it."""
    key = weights_key(checkpoint)
    state = checkpoint if key is None else checkpoint[key]
    if has_backbone(model):
        report = PreparedState(model, state).load(model)
        missing = [name for name in report.initial if not name.endswith('num_batches_tracked')]
        if missing:
            raise CheckpointError(f'the checkpoint has no {missing[0]} ({len(missing)} entries '
                                  'are missing); is it of another config?')
        return
    missing = [name for name in model.state_dict() if name not in state
               and not name.endswith('num_batches_tracked')]
    if missing:
        raise CheckpointError(f'the checkpoint has no {missing[0]} ({len(missing)} entries are '
                              'missing); is it of another config?')
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise CheckpointError(f'the checkpoint does not fit the config: '
                              f'{str(error).splitlines()[-1].strip()}') from error


def dataset_meta(checkpoint: Dict[str, Any], cfg: Config) -> Dict[str, Any]:
    """The class names and colours: those of the checkpoint, else of the config."""
    meta = checkpoint.get('meta') or {}
    saved = {key.lower(): value for key, value in (meta.get('dataset_meta') or {}).items()}
    if 'CLASSES' in meta:  # of mmdet 2
        saved.setdefault('classes', meta['CLASSES'])
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    result = {**(dataset.get('metainfo') or {}), **saved}
    if not result.get('classes'):
        result['classes'] = get_classes('coco')
    palette = result.get('palette')
    if not isinstance(palette, (list, tuple)) or len(palette) < len(result['classes']):
        result['palette'] = 'random'
    return result


def read_config(checkpoint: Dict[str, Any], source: str, path: Optional[str]) -> Config:
    """The config of a detector: the one in its checkpoint, or a file.

    Args:
        checkpoint: As it was read.
        source: The checkpoint's name.
        path: A config file, needed where the checkpoint has no config.
    """
    if path is not None:
        cfg = Config.fromfile(path)
    else:
        cfg = config_of_checkpoint(checkpoint, f'checkpoint {source}')
        if cfg is None:
            raise CheckpointError(f'checkpoint {source} carries no config; pass one with --config')
    missing = [key for key in NEEDED if key not in cfg]
    if missing:
        raise CheckpointError(f'the config of checkpoint {source} has no {" and no ".join(missing)}'
                              '; pass the config of a detector with --config')
    if path is None:
        _without_weights(cfg.model)
        pipeline = cfg.test_dataloader.dataset.get('pipeline')
        check_names(Config(dict(model=cfg.model, pipeline=pipeline,
                                custom_imports=cfg.get('custom_imports') or {})),
                    f'checkpoint {source}')
    return cfg


def _without_weights(model: Any) -> None:
    """Drop every ``init_cfg``: the checkpoint has all the weights."""
    if isinstance(model, dict):
        model.pop('init_cfg', None)
    for value in model.values() if isinstance(model, dict) else model:
        if isinstance(value, (dict, list, tuple)):
            _without_weights(value)


class Predictor(BasePredictor):
    """Detects objects in images, folders and videos with a trained detector.

    Args:
        checkpoint: A path, a URL, or the work dir of a training for its best or last checkpoint.
            The config that mmengine saved in it is used; it is read as data and never executed.
        config: A config file, for a checkpoint that has none.
        device: Such as ``'cuda:1'``; by default the best one there is.
        batch_size: How many images the network gets at a time.
        fuse: Fold batch norms into convolutions first, see :func:`mmrla.models.lean.fuse.fuse`.

    Example:
        >>> import mmrla
        >>> predictor = mmrla.Predictor('work_dirs/demo/epoch_8.pth')  # doctest: +SKIP
        >>> samples = predictor('data/shapes/val2017')  # doctest: +SKIP
        >>> samples[0].pred_instances.bboxes.shape  # doctest: +SKIP
        torch.Size([12, 4])
    """

    def __init__(self, checkpoint: str, config: Optional[str] = None,
                 device: Optional[str] = None, batch_size: int = 1, fuse: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(f'batch_size is {batch_size}; it must be 1 or more')
        checkpoint = find_checkpoint(checkpoint)
        content = load_checkpoint(checkpoint)
        self.cfg = read_config(content, checkpoint, config)
        self.inferencer = _Inferencer(self.cfg, content, device)
        meta = self.inferencer.model.dataset_meta
        super().__init__(meta['classes'], meta['palette'], batch_size)
        if fuse:
            fuse_model(self.inferencer.model)

    @property
    def name(self) -> str:
        """What detects, for the screen."""
        return type(self.model).__name__

    @property
    def model(self) -> nn.Module:
        """The detector, in eval mode."""
        return self.inferencer.model

    @property
    def device(self) -> torch.device:
        """Where the detector is."""
        return next(self.model.parameters()).device

    def predict_batches(self, batches: Iterator[List[Frame]]
                        ) -> Iterator[Tuple[Frame, DetDataSample]]:
        """Detect objects in batches of images.

        While a GPU computes, the next images are read and scaled in a second thread. On a
        CPU that thread would take a core from the network, whose threads wait for each other.
        """
        for batch in self._loaded(batches):
            chunk, data = self.inferencer.collate_fn(batch)
            with torch.inference_mode():
                samples = self.inferencer.forward(data)
            yield from zip(chunk, samples, strict=True)

    def _loaded(self, batches: Iterator[List[Frame]]) -> Iterator[List[Tuple[Frame, dict]]]:
        """Read and scale the images of each batch."""
        if self.device.type == 'cpu':
            yield from map(self._load, batches)
            return
        with ThreadPoolExecutor(1, thread_name_prefix='mmrla-read') as reader:
            yield from _ahead(reader, self._load, batches)

    def _load(self, frames: List[Frame]) -> List[Tuple[Frame, dict]]:
        return [(frame, self._prepare(frame)) for frame in frames]

    def _prepare(self, frame: Frame) -> dict:
        """An image as the test pipeline packs it."""
        try:
            return self.inferencer.pipeline(frame.path or frame.image)
        except Exception as error:  # decoders and transforms raise nearly anything
            raise InputError(f'image {frame.name} cannot be used '
                             f'({type(error).__name__}: {str(error).splitlines()[0]})') from error


def _ahead(executor: ThreadPoolExecutor, function: Any, items: Iterator, depth: int = 2
           ) -> Iterator:
    """``map(function, items)``, computed a few items ahead in another thread."""
    waiting: Deque[Future] = deque(executor.submit(function, item)
                                   for item in islice(items, depth))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(executor.submit(function, item) for item in islice(items, 1))
        yield result
