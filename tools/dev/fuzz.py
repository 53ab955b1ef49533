"""Damage files at random and check that each ends in a result or a clear error.

    python tools/dev/fuzz.py --cases 2400

The cases damage annotations, images, checkpoints and config values. Each case has its
own seed, so that a failed case can be repeated alone (--only NUMBER).
"""
import argparse
import contextlib
import copy
import io
import json
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import cv2
import numpy as np
import torch
from mmdet.registry import DATASETS
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.registry import MODELS

import mmrla  # noqa: F401  (registers the modules)
from mmrla.commands.errors import clear_errors
from mmrla.datasets import CLASSES, checks, make_shapes
from mmrla.datasets.errors import DataError, NamedItems, name_annotation_errors
from mmrla.engine.resume import find_newest
from mmrla.weights import load_weights
from mmrla.weights.writing import PARTIAL

# A case takes 20 ms; a case that exceeds one of these limits hangs.
CPU_SECONDS = 20
CLOCK_SECONDS = 600
STRANGE = (None, True, -1, 0, 1, 7, 10**6, 2**63, -0.5, 1e308, float('nan'), float('inf'), '', 'x',
           '../x', '\0', 'ü' * 50, [], {}, [[]], [None], [1, 2, 3], {'id': 1}, 10**400)


class Bench:
    """Small valid files to damage.

    Args:
        folder: Folder for the damaged files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = make_shapes(folder / 'shapes', train=3, val=1)
        self.annotations = json.loads(
            (self.data / 'annotations/instances_train2017.json').read_text())
        self.images = [path.read_bytes() for path in sorted((self.data / 'train2017').iterdir())]
        self.images.append(cv2.imencode('.jpg', cv2.imdecode(
            np.frombuffer(self.images[0], np.uint8), 1))[1].tobytes())
        self.network = MODELS.build(backbone())
        buffer = io.BytesIO()
        torch.save(dict(meta=dict(epoch=1, iter=4), message_hub={}, optimizer={},
                        state_dict=self.network.state_dict()), buffer)
        self.checkpoint = buffer.getvalue()


def backbone(**options: Any) -> Dict[str, Any]:
    """Return the config of a small backbone."""
    return dict(type='RLAResNet', depth=18, base_channels=4, rla=dict(channels=4)) | options


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """Truncate, flip, zero, remove, repeat or replace a part of a file."""
    content = bytearray(content)
    kind = rng.randrange(6)
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.choice((1, 16, 400, len(content))))
    if kind == 0:
        del content[start:]
    elif kind == 1:
        for _ in range(rng.choice((1, 8, 64))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        content[start:end] = bytes(end - start)
    elif kind == 3:
        del content[start:end]
    elif kind == 4:
        content[start:start] = content[start:end]
    else:
        content[start:end] = rng.randbytes(end - start)
    return bytes(content)


def damage_value(rng: random.Random, value: Any) -> Any:
    """Change one value in nested lists and dicts."""
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return value
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.85:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        elif rng.random() < 0.1 and isinstance(place, list):
            place.append(copy.deepcopy(place[key]))
        else:
            place[key] = rng.choice(STRANGE)
        return value


def annotations_case(rng: random.Random, bench: Bench) -> None:
    """Load a damaged annotation file as training does, and check it."""
    content = copy.deepcopy(bench.annotations)
    for _ in range(rng.randint(1, 4)):
        content = damage_value(rng, content)
    text = json.dumps(content).encode()
    if rng.random() < 0.3:
        text = damage_bytes(rng, text)
    path = bench.folder / 'damaged.json'
    path.write_bytes(text)
    report = checks.Report()
    with contextlib.suppress(DataError):
        jobs = checks.check_coco(report, path, bench.data / 'train2017', num_classes=6)
        checks.check_images(report, jobs, workers=0)
        list(report.lines())
    with name_annotation_errors():  # as the runner builds a loader
        dataset = DATASETS.build(dict(
            type='CocoDataset', ann_file=str(path),
            data_prefix=dict(img=f'{bench.data}/train2017/'), metainfo=dict(classes=CLASSES),
            filter_cfg=dict(filter_empty_gt=True, min_size=8), pipeline=PIPELINE))
    for index in range(min(3, len(dataset))):
        NamedItems(dataset)([index])


PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]


def image_case(rng: random.Random, bench: Bench) -> None:
    """Check a damaged image, and load it."""
    path = bench.folder / 'damaged.png'
    path.write_bytes(damage_bytes(rng, rng.choice(bench.images)))
    checks.image_problem(checks.ImageJob(str(path), (100, 100)))
    from mmrla.datasets import LoadNamedImage
    LoadNamedImage()(dict(img_path=str(path)))


def checkpoint_case(rng: random.Random, bench: Bench) -> None:
    """Load a damaged checkpoint, and resume from its folder."""
    folder = bench.folder / 'run'
    folder.mkdir(exist_ok=True)
    path = folder / 'epoch_1.pth'
    path.write_bytes(damage_bytes(rng, bench.checkpoint))
    if rng.random() < 0.3:
        (folder / 'last_checkpoint').write_bytes(damage_bytes(rng, str(path).encode()))
        (folder / 'run.json').write_bytes(damage_bytes(rng, b'{"run": "0123456789abcdef"}'))
    try:
        find_newest(str(folder), lambda line: None)
        load_weights(bench.network, str(path))
    finally:
        for leftover in ('last_checkpoint', 'run.json'):
            (folder / leftover).unlink(missing_ok=True)


def config_case(rng: random.Random, bench: Bench) -> None:
    """Build a backbone with a wrong value, or read a damaged YAML or JSON config."""
    options = backbone()
    if rng.random() < 0.5:
        key = rng.choice(('depth', 'base_channels', 'rla', 'attention', 'frozen_stages',
                          'out_indices', 'strides', 'num_stages', 'style', 'norm_cfg'))
        # torch refuses numbers of more than 64 bits
        strange = [value for value in STRANGE if value not in (2**63, 10**400)]
        options[key] = rng.choice((*strange, dict(channels=rng.choice(strange)),
                                   dict(variant=rng.choice(strange))))
        MODELS.build(options)
        return
    suffix = rng.choice(('.json', '.yml'))
    path = bench.folder / f'damaged{suffix}'
    path.write_bytes(damage_bytes(rng, json.dumps(options).encode()))
    try:
        Config.fromfile(str(path))
    except Exception as error:  # an error of mmengine about the config of the command line
        raise DataError(f'config {path}: {type(error).__name__}') from error


CASES: List[Callable[[random.Random, Bench], None]] = [
    annotations_case, image_case, checkpoint_case, config_case]


class HangError(BaseException):
    """A case takes too long; handlers of Exception do not catch it."""


def _too_slow(number: int, frame: Any) -> None:
    raise HangError


def is_clear(error: Exception) -> bool:
    """Return whether an error names the file or value and the problem."""
    # the checks of the backbones raise errors that name the value
    return _is_raised_in(error, '/mmrla/models/') or is_documented(error)


def is_documented(error: Exception) -> bool:
    """Return whether a ``raise`` statement of mmengine or mmcv raised an error."""
    return isinstance(error, (KeyError, TypeError, ValueError)) and (
        _is_raised_in(error, '/mmcv/cnn/') or _is_raised_in(error, '/mmengine/registry/'))


def _is_raised_in(error: Exception, place: str) -> bool:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.line or '').startswith('raise') and place in last.filename


def run_case(number: int, seed: int, bench: Bench, outcomes: Counter) -> Optional[str]:
    """Run one case; return the traceback of an error that is not clear."""
    kind = CASES[number % len(CASES)].__name__.removesuffix('_case')
    rng = random.Random(f'{seed}-{number}')
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(CLOCK_SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), clear_errors():
            CASES[number % len(CASES)](rng, bench)
        outcomes[f'{kind}: a result'] += 1
    except HangError:
        return f'the case hangs:\n{traceback.format_exc()}'
    except SystemExit:  # a command would end with this line
        outcomes[f'{kind}: a clear error'] += 1
    except Exception as error:
        if not is_clear(error):
            return traceback.format_exc()
        name = 'an error of mmcv or mmengine' if is_documented(error) else 'a clear error'
        outcomes[f'{kind}: {name}'] += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    if any(bench.folder.rglob(PARTIAL.format(name='*', pid='*'))):
        return 'a partial file was left'
    return None


def run(cases: int, seed: int, only: Optional[int] = None) -> Tuple[Dict[int, str], Counter]:
    """Run many cases; return the failures by number and the counts of the outcomes."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.signal(signal.SIGPROF, _too_slow)
    register_all_modules()
    failures, outcomes = {}, Counter()
    with tempfile.TemporaryDirectory(prefix='fuzz-') as folder:
        bench = Bench(Path(folder))
        for number in range(cases) if only is None else [only]:
            failure = run_case(number, seed, bench, outcomes)
            if failure is not None:
                failures[number] = failure
    return failures, outcomes


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cases', type=int, default=2400, help='number of cases')
    parser.add_argument('--seed', type=int, default=0, help='seed of the damages')
    parser.add_argument('--only', type=int, metavar='NUMBER', help='repeat one case')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    failures, outcomes = run(args.cases, args.seed, args.only)
    for number, failure in failures.items():
        print(f'--- case {number} ({CASES[number % len(CASES)].__name__})\n{failure}')
    for outcome, count in sorted(outcomes.items()):
        print(f'{count:6} {outcome}')
    print(f'{len(failures):6} failures')
    sys.exit(bool(failures))


if __name__ == '__main__':
    main()
