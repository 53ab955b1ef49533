r"""How long a training step takes, as a ratio to the first config's.

    python tools/benchmark.py configs/faster_rcnn_r50_fpn_1x.py \\
        configs/faster_rcnn_rla_r50_fpn_1x.py

The models are built in one process and take turns, round by round, on the same
images: machines are noisy, and an absolute time proves nothing.
"""
import argparse
import time
from pathlib import Path
from typing import Callable, List

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

import mmrla  # noqa: F401  (registers the modules and mends the stack)


def images_and_boxes(batch: int, size: List[int]) -> dict:
    """A batch as a data loader makes it: noise, with a few boxes and masks."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData
    rng = np.random.default_rng(0)
    height, width = size
    inputs, samples = [], []
    for _ in range(batch):
        inputs.append(torch.from_numpy(rng.integers(0, 256, (3, height, width), np.uint8)))
        corner = rng.uniform(0, 0.5, (8, 2)) * (width, height)
        extent = rng.uniform(0.1, 0.5, (8, 2)) * (width, height)
        boxes = np.concatenate([corner, corner + extent], 1).astype(np.float32)
        masks = np.zeros((8, height, width), np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int), strict=True):
            mask[y1:y2, x1:x2] = 1
        sample = DetDataSample(metainfo=dict(
            img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0)))
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(boxes), labels=torch.from_numpy(rng.integers(0, 80, 8)),
            masks=BitmapMasks(masks, height, width))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


def training_step(path: Path, batch: dict) -> Callable[[], None]:
    """A function that does one training step of a config's model."""
    cfg = Config.fromfile(path)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).to(get_device()).train()
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    return lambda: model.train_step(batch, optimizer)


def seconds(function: Callable[[], None]) -> float:
    """How long a call takes, its work on a GPU included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description='Compare the training steps of detectors.')
    parser.add_argument('configs', nargs='+', type=Path)
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--size', nargs=2, type=int, default=(320, 320), metavar=('H', 'W'))
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--warm-up', type=int, default=2)
    args = parser.parse_args()
    from mmdet.utils import register_all_modules
    register_all_modules(init_default_scope=False)
    batch = images_and_boxes(args.batch, args.size)
    steps = [training_step(path, batch) for path in args.configs]
    rounds = np.array([[seconds(step) for step in steps]
                       for _ in range(args.warm_up + args.rounds)])[args.warm_up:]
    ratios = rounds / rounds[:, :1]
    print(f'{"config":<40} {"s / step":>9} {"ratio":>7}   quartiles')
    for path, times, ratio in zip(args.configs, rounds.T, ratios.T, strict=True):
        low, middle, high = np.percentile(ratio, (25, 50, 75))
        print(f'{path.stem:<40} {np.median(times):9.3f} {middle:7.3f}   {low:.3f} to {high:.3f}')


if __name__ == '__main__':
    main()
