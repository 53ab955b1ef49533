r"""Detect objects in images, folders and videos with a trained detector.

    mmrla predict work_dirs/demo/epoch_8.pth photos/ holiday.mp4 '*.jpg' -o found
    mmrla predict work_dirs/demo/epoch_8.pth 0        # the first camera; Ctrl-C ends it

Writes pictures with boxes and masks, a video for each video, and predictions.json in COCO's
format. The config is taken from the checkpoint, as data: nothing in it is executed.
"""
import argparse
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

import cv2
import numpy as np

import mmrla  # noqa: F401  (registers the modules)

from .errors import clear_errors
from .logs import silence_logs
from .screen import SHOWN_ROWS, console, progress_bar, say, table

PICTURES_AHEAD = 8
ONNX = '.onnx'


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Detect objects in images, folders and videos with a trained detector.')
    parser.add_argument('checkpoint', help='a trained detector: a checkpoint, a work dir, or a '
                        'file of mmrla export (.onnx)')
    parser.add_argument('inputs', nargs='+', metavar='INPUT',
                        help='an image, a folder, a glob, a video, or the number of a camera')
    parser.add_argument('-o', '--out', type=Path, default=Path('predictions'),
                        help='the folder for pictures and predictions.json (predictions)')
    parser.add_argument('--config', help='the config, for a checkpoint that carries none')
    parser.add_argument('--score', type=float, default=0.3,
                        help='draw and count detections from this score on (0.3); '
                        'predictions.json has all')
    parser.add_argument('--batch-size', type=int, default=1, help='images at a time (1)')
    parser.add_argument('--device', help='such as cuda:1 or cpu; by default the best there is')
    parser.add_argument('--fuse', action='store_true', help='fold batch norms first: faster')
    parser.add_argument('--no-pictures', action='store_true', help='write predictions.json only')
    parser.add_argument('--ann', metavar='ANNOTATIONS',
                        help='a COCO-format file whose image and category ids are used')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if not 0 <= args.score <= 1:
        parser.error(f'--score {args.score} must be between 0 and 1')
    if args.batch_size < 1:
        parser.error(f'--batch-size {args.batch_size} must be 1 or more')
    if Path(args.checkpoint).suffix == ONNX:
        _check_onnx(parser, args)
    return args


def _check_onnx(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse what an ONNX file cannot take."""
    if not Path(args.checkpoint).is_file():
        parser.error(f'{args.checkpoint} does not exist; mmrla export writes such a file')
    for name in ('config', 'device', 'fuse'):
        if getattr(args, name):
            parser.error(f'--{name} is for checkpoints; {args.checkpoint} is an ONNX file')


class PictureWriter:
    """Draws and writes pictures and videos, beside a GPU in a second thread.

    On a CPU a second thread would take a core from the detector, whose threads wait for
    each other: a small detector took twice as long.

    Args:
        predictor: Draws.
        folder: Where the files go.
        score: Detections below it are not drawn.
    """

    def __init__(self, predictor: Any, folder: Path, score: float) -> None:
        self.predictor, self.folder, self.score = predictor, folder, score
        is_on_cpu = predictor.device.type == 'cpu'
        self.executor = None if is_on_cpu else ThreadPoolExecutor(
            1, thread_name_prefix='mmrla-draw')
        self.waiting: List[Any] = []
        self.videos: Dict[Any, cv2.VideoWriter] = {}
        self.names: Set[Path] = set()

    def add(self, frame: Any, sample: Any) -> None:
        """Draw now or soon; wait if too many pictures are waiting."""
        if self.executor is None:
            self._draw(frame, sample)
            return
        self.waiting.append(self.executor.submit(self._draw, frame, sample))
        if len(self.waiting) > PICTURES_AHEAD:
            self.waiting.pop(0).result()

    def _draw(self, frame: Any, sample: Any) -> None:
        picture = np.ascontiguousarray(self.predictor.draw(frame, sample, self.score))
        if frame.video is None:
            path = self._unused(self.folder / frame.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not cv2.imwrite(str(path), picture):
                raise OSError(f'{path} cannot be written')
        else:
            self._video(frame.video, picture).write(picture)

    def _unused(self, path: Path) -> Path:
        """The path, or one with a number if another input had this name."""
        candidate, number = path, 1
        while candidate in self.names:
            number += 1
            candidate = path.with_stem(f'{path.stem}_{number}')
        self.names.add(candidate)
        return candidate

    def _video(self, video: Any, picture: np.ndarray) -> cv2.VideoWriter:
        if video not in self.videos:
            path = self._unused((self.folder / video.name).with_suffix('.mp4'))
            height, width = picture.shape[:2]
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'mp4v'), video.fps,
                                     (width, height))
            if not writer.isOpened():
                raise OSError(f'video {path} cannot be written: this OpenCV has no mp4 encoder')
            self.videos[video] = writer
        return self.videos[video]

    def close(self) -> None:
        """Wait for all pictures."""
        try:
            while self.waiting:
                self.waiting.pop(0).result()
        finally:
            if self.executor is not None:
                self.executor.shutdown(cancel_futures=True)
            for writer in self.videos.values():
                writer.release()


class Summary:
    """Counts detections by class.

    Args:
        classes: Names of the classes.
        score: Detections below it are not counted.
    """

    def __init__(self, classes: tuple, score: float) -> None:
        self.classes, self.score = classes, score
        self.images = 0
        self.found: Dict[int, List[float]] = defaultdict(list)
        self.images_with: Counter = Counter()

    def add(self, sample: Any) -> None:
        """Count the detections of one image."""
        self.images += 1
        found = sample.pred_instances
        found = found[found.scores >= self.score]
        for label, score in zip(found.labels.tolist(), found.scores.tolist(), strict=True):
            self.found[label].append(score)
        self.images_with.update(set(found.labels.tolist()))

    def show(self) -> None:
        """Print the classes, the most frequent first."""
        if not self.found:
            say(f'nothing found with a score of {self.score:g} or more')
            return
        rows = [(self.classes[label], len(scores), self.images_with[label],
                 f'{np.mean(scores):.2f}')
                for label, scores in sorted(self.found.items(), key=lambda item: -len(item[1]))]
        shown = rows if len(rows) <= SHOWN_ROWS else rows[:SHOWN_ROWS - 1]
        console.print(table(f'found with a score of {self.score:g} or more',
                            ('class', 'detections', 'images', 'mean score'), shown))
        if len(shown) < len(rows):
            say(f'... and {len(rows) - len(shown)} more classes')


def open_predictor(args: argparse.Namespace) -> Any:
    """Load the detector of a checkpoint or of an ONNX file."""
    from mmrla.inference import OnnxPredictor, Predictor  # imports mmdet
    if Path(args.checkpoint).suffix == ONNX:
        return OnnxPredictor(args.checkpoint, args.batch_size)
    return Predictor(args.checkpoint, args.config, args.device, args.batch_size, args.fuse)


def run(args: argparse.Namespace) -> None:
    """Predict, draw and write."""
    from mmrla.inference import open_inputs  # imports mmdet
    inputs = open_inputs(args.inputs)
    predictor = open_predictor(args)
    say(f'{predictor.name} from {args.checkpoint}, '
        f'{len(predictor.classes)} classes, on {predictor.device}')
    start = time.perf_counter()
    summary = write_predictions(predictor, inputs, args)
    seconds = time.perf_counter() - start
    summary.show()
    say(f'{summary.images} images in {seconds:.1f} s ({summary.images / seconds:.1f} images/s)')
    say(f'predictions: {args.out / "predictions.json"}'
        + ('' if args.no_pictures else f', pictures: {args.out}/'))


def write_predictions(predictor: Any, inputs: Any, args: argparse.Namespace) -> Summary:
    """Predict on all inputs; write the pictures and the file.

    Args:
        predictor: A trained detector.
        inputs: What it gets.
        args: The arguments of the command.

    Returns:
        Summary: What was found.
    """
    from mmrla.inference import CocoWriter
    writer = CocoWriter(predictor.classes, args.ann)
    summary = Summary(predictor.classes, args.score)
    pictures = None if args.no_pictures else PictureWriter(predictor, args.out, args.score)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        _predict_all(predictor, inputs, writer, summary, pictures)
    except KeyboardInterrupt:  # how a camera's stream ends
        say('stopped; what was found so far is written')
    finally:
        if pictures is not None:
            pictures.close()
    writer.write(args.out / 'predictions.json')
    return summary


def _predict_all(predictor: Any, inputs: Any, writer: Any, summary: Summary,
                 pictures: Optional[PictureWriter]) -> None:
    with progress_bar() as bar:
        task = bar.add_task('predict', total=len(inputs) or None)
        for frame, sample in predictor.stream(inputs):
            sample = sample.cpu()
            writer.add(frame, sample)
            summary.add(sample)
            if pictures is not None:
                pictures.add(frame, sample)
            bar.advance(task)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    silence_logs()
    with clear_errors():
        run(args)


if __name__ == '__main__':
    main()
