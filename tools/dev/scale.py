"""Measure the commands on a data set of COCO's size: seconds and memory.

    python tools/dev/scale.py                                      # 118,000 images, 860,000 boxes
    python tools/dev/scale.py --images 1000 --boxes 7000

Generates the annotations. The images are links to a few files, so that little is written; they
are read and decoded like any others. Memory is the largest resident size of one process. The
CPU time of a command depends less on what else the machine does than its seconds.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import cv2
import numpy as np

from mmrla.commands.paths import REPO

sys.path.insert(0, str(Path(__file__).parent))
from chaos import small_config  # noqa: E402

WIDTH, HEIGHT = 640, 480
MAX_LINKS = 50_000  # ext4 allows 65,000 to a file
FIRST_STEP = '(train) '


def make_images(folder: Path, count: int, seed: int) -> List[Dict[str, Any]]:
    """Write some images and links to them; their entries in the annotations."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    image = cv2.resize(pixels, (WIDTH, HEIGHT))
    names = [f'{number:012}.jpg' for number in range(count)]
    for number, name in enumerate(names):
        if number % MAX_LINKS == 0:
            first = folder / name
            cv2.imwrite(str(first), image)
        else:
            os.link(first, folder / name)
    return [dict(id=number, file_name=name, width=WIDTH, height=HEIGHT)
            for number, name in enumerate(names)]


def make_boxes(images: int, count: int, classes: int) -> List[Dict[str, Any]]:
    """Random boxes with a polygon each."""
    rng, found = random.Random(0), []
    for number in range(count):
        width, height = rng.uniform(8, 200), rng.uniform(8, 200)
        left, top = rng.uniform(0, WIDTH - width), rng.uniform(0, HEIGHT - height)
        right, bottom = left + width, top + height
        found.append(dict(
            id=number + 1, image_id=rng.randrange(images), category_id=rng.randint(1, classes),
            bbox=[round(value, 2) for value in (left, top, width, height)],
            area=round(width * height, 2), iscrowd=0, segmentation=[[round(value, 2) for value in (
                left, top, right, top, right, bottom, left, bottom)]]))
    return found


def make_data(folder: Path, images: int, boxes: int, classes: Sequence[str]) -> None:
    """Write a training and a validation set in COCO's layout."""
    categories = [dict(id=number, name=name) for number, name in enumerate(classes, 1)]
    (folder / 'annotations').mkdir(parents=True)
    for split, count, objects in (('train', images, boxes), ('val', 50, 350)):
        content = dict(images=make_images(folder / f'{split}2017', count, seed=len(split)),
                       annotations=make_boxes(count, objects, len(classes)), categories=categories)
        (folder / f'annotations/instances_{split}2017.json').write_text(json.dumps(content))


class Measured(NamedTuple):
    """One command.

    Attributes:
        first: Seconds until the first step was logged; None if there was none.
        total: Seconds until the end.
        cpu: Seconds of CPU time, with child processes.
        megabytes: The largest resident size.
    """
    first: Optional[float]
    total: float
    cpu: float
    megabytes: float


def measure(*command: object) -> Measured:
    """Run a command."""
    start, first = time.monotonic(), None
    process = subprocess.Popen([sys.executable, '-u', *map(str, command)], text=True, cwd=REPO,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env={**os.environ, 'PYTHONPATH': str(REPO)})
    lines = []
    for line in process.stdout:
        lines.append(line)
        if first is None and FIRST_STEP in line:
            first = time.monotonic() - start
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(''.join(lines[-30:]))
    return Measured(first, time.monotonic() - start, usage.ru_utime + usage.ru_stime,
                    usage.ru_maxrss / 1024)


def write_config(folder: Path) -> Path:
    """The config of a small detector that trains by steps."""
    cfg = small_config(folder / 'data', folder / 'work', validate=True, log_level='INFO')
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=1, val_interval=1000)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler')
    cfg.default_hooks.checkpoint = dict(type='SafeCheckpointHook', by_epoch=False, interval=1)
    cfg.dump(folder / 'config.py')
    return folder / 'config.py'


def run(folder: Path, images: int, boxes: int, workers: int) -> None:
    """Generate the data, and print a line for each command."""
    config = write_config(folder)
    classes = small_config(folder, folder).train_dataloader.dataset.metainfo.classes
    start = time.monotonic()
    make_data(folder / 'data', images, boxes, classes)
    annotations = folder / 'data/annotations/instances_train2017.json'
    print(f'{images:,} images, {boxes:,} boxes, annotations of '
          f'{annotations.stat().st_size / 2**20:.0f} MB, generated in '
          f'{time.monotonic() - start:.0f} s', flush=True)
    train = ('tools/train.py', config)
    for name, command in {
            'train': train,
            'train --resume': (*train, '--resume', '--cfg-options', 'train_cfg.max_iters=2'),
            'train --no-checks': (*train, '--no-checks'),
            'check_dataset': ('tools/check_dataset.py', config, '--workers', workers)}.items():
        found = measure(*command)
        step = '' if found.first is None else f'first step after {found.first:.1f} s, '
        print(f'{name}: {step}{found.total:.1f} s in all ({found.cpu:.1f} s of CPU time), '
              f'{found.megabytes:.0f} MB', flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=118_000,
                        help='number of training images')
    parser.add_argument('--boxes', type=int, default=860_000, help='number of boxes')
    parser.add_argument('--workers', type=int, default=2, help='processes of check_dataset')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix='scale-') as folder:
        run(Path(folder), args.images, args.boxes, args.workers)


if __name__ == '__main__':
    main()
