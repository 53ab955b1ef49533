r"""Write a trained detector as an ONNX file, with standard operators only.

    mmrla export work_dirs/demo -o detector.onnx
    mmrla export work_dirs/demo/epoch_8.pth -o detector.onnx --with-preprocessing
    mmrla predict detector.onnx photos/

Faster R-CNN, Mask R-CNN and RetinaNet. The number and the size of the images are not fixed.
The detector is fused first. The file has the class names and the pre-processing as metadata.
After that the command runs the file in onnxruntime and prints the largest difference to torch.
"""
import argparse
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import cv2
import numpy as np

import mmrla  # noqa: F401  (registers the modules)
from mmrla.datasets.shapes import draw_image

from .errors import clear_errors
from .logs import silence_logs
from .screen import say

# Width and height of the drawn images.
SIZES = ((640, 480), (500, 333), (240, 427))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Write a trained detector as an ONNX file.')
    parser.add_argument('checkpoint', help='a trained detector: a checkpoint or a work dir')
    parser.add_argument('-o', '--out', type=Path, default=Path('model.onnx'),
                        help='the file to write (model.onnx)')
    parser.add_argument('--config', help='the config, for a checkpoint that carries none')
    parser.add_argument('--with-preprocessing', action='store_true',
                        help='take images as they are, (B, H, W, 3) of uint8 in BGR, and scale, '
                        'normalise and pad them in the graph')
    parser.add_argument('--no-fuse', action='store_true',
                        help='leave batch norms as they are instead of folding them')
    parser.add_argument('--no-check', action='store_true',
                        help='do not compare the file with torch')
    parser.add_argument('--check-on', nargs='+', metavar='IMAGE', default=[],
                        help='images to compare on; by default drawn ones of three sizes')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.out.suffix != '.onnx':
        parser.error(f'{args.out} must end in .onnx')
    return args


def images_to_check(paths: Sequence[str]) -> List[np.ndarray]:
    """The images that the file and torch are compared on."""
    if paths:
        from mmrla.inference import open_inputs
        return [frame.pixels() for frame in open_inputs(paths)]
    return [cv2.resize(draw_image(seed=0, number=number)[0], size)
            for number, size in enumerate(SIZES)]


def largest_differences(expected: Any, found: Any) -> Dict[str, float]:
    """Compare the detections of one image.

    Detections are compared in the order of their scores.

    Args:
        expected: ``pred_instances`` of torch.
        found: ``pred_instances`` of onnxruntime.

    Returns:
        dict: The largest difference of boxes in pixels and of scores, and the number of
        detections that only one of both has.
    """
    expected, found = expected.cpu(), found.cpu()
    unmatched = abs(len(expected) - len(found))
    count = min(len(expected), len(found))
    boxes = (expected.bboxes[:count] - found.bboxes[:count]).abs()
    scores = (expected.scores[:count] - found.scores[:count]).abs()
    return dict(boxes=float(boxes.max()) if count else 0.0,
                scores=float(scores.max()) if count else 0.0, unmatched=unmatched)


def check(predictor: Any, path: Path, images: Sequence[np.ndarray]) -> None:
    """Run the file and print the largest differences to torch."""
    from mmrla.inference import OnnxPredictor
    compared = [largest_differences(expected.pred_instances, found.pred_instances)
                for expected, found in zip(predictor(images), OnnxPredictor(str(path))(images),
                                           strict=True)]
    worst = {key: max(one[key] for one in compared) for key in ('boxes', 'scores', 'unmatched')}
    say(f'{len(images)} images in onnxruntime and in torch: boxes differ by at most '
        f'{worst["boxes"]:.2g} pixels, scores by {worst["scores"]:.2g}, detections by '
        f'{worst["unmatched"]}')


def run(args: argparse.Namespace) -> None:
    """Export and compare."""
    from mmrla.inference import Predictor  # imports mmdet
    predictor = Predictor(args.checkpoint, args.config, 'cpu', fuse=not args.no_fuse)
    say(f'{predictor.name} from {args.checkpoint}, {len(predictor.classes)} classes')
    start = time.perf_counter()
    export(predictor, args.out, args.with_preprocessing)
    say(f'written in {time.perf_counter() - start:.0f} s: {args.out} '
        f'({args.out.stat().st_size / 1e6:.1f} MB)')
    if not args.no_check:
        check(predictor, args.out, images_to_check(args.check_on))
    say(f'next: mmrla predict {args.out} IMAGES')


def export(predictor: Any, path: Path, with_preprocessing: bool = False) -> None:
    """Write the detector of a predictor.

    Args:
        predictor: A :class:`~mmrla.inference.predictor.Predictor`.
        path: The file.
        with_preprocessing: Whether the pre-processing becomes a part of the graph.
    """
    from mmrla.export.errors import MissingPackageError
    try:
        from mmrla.export.onnx_file import to_onnx, write_onnx
        from mmrla.export.preprocessing import Preprocessing
    except ModuleNotFoundError as error:
        raise MissingPackageError(f'{error.name} is not installed: pip install onnx onnxscript '
                             'onnxruntime') from error
    model = predictor.model
    about = dict(classes=predictor.classes, detector=type(model).__name__,
                 palette=[color[::-1] for color in predictor.colors])
    if model.with_mask:
        about['mask_threshold'] = model.roi_head.test_cfg.mask_thr_binary
    write_onnx(to_onnx(model, Preprocessing.of(predictor.cfg), with_preprocessing, about),
               path)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    silence_logs()
    with clear_errors():
        run(args)


if __name__ == '__main__':
    main()
