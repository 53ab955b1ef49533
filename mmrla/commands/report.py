r"""Make one HTML page about one or several training runs.

    mmrla report work_dirs/demo
    mmrla report work_dirs/plain work_dirs/rla -o report.html

The page needs no other file and no network. Detections on the validation images are made
with the run's best or last checkpoint and kept in RUN/predictions/, so that a second report
takes seconds.
"""
import argparse
import time
from pathlib import Path
from typing import Any, Optional, Sequence

import mmrla  # noqa: F401  (registers the modules)

from .errors import clear_errors
from .logs import silence_logs
from .screen import error_console, progress_bar, say


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Make one HTML page about one or several training runs.')
    parser.add_argument('runs', nargs='+', type=Path, metavar='RUN',
                        help='the work dir of a training; the first is what others are '
                        'compared with')
    parser.add_argument('-o', '--out', type=Path, default=Path('report.html'),
                        help='the page (report.html)')
    parser.add_argument('--score', type=float, default=0.3,
                        help='detections from this score on count in the matrix, the errors '
                        'and the images (0.3)')
    parser.add_argument('--images', type=int, default=48, help='how many images to show (48)')
    parser.add_argument('--inside', type=int, default=3,
                        help='on how many of them to show the hidden state (3)')
    parser.add_argument('--batch-size', type=int, default=4,
                        help='images at a time, where detections must be made (4)')
    parser.add_argument('--no-predict', action='store_true',
                        help='use kept detections only, make none')
    parser.add_argument('--no-cost', action='store_true', help='do not time the backbones')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if not 0 <= args.score < 1:
        parser.error(f'--score {args.score} must be from 0 to below 1')
    for name in ('images', 'inside'):
        if getattr(args, name) < (name == 'images'):
            parser.error(f'--{name} {getattr(args, name)} is too small')
    return args


def predict(run: Any, batch_size: int) -> Optional[Path]:
    """Detect on the validation images of a run; None if it cannot be done."""
    from mmrla.evaluation.report import results
    from mmrla.inference import CocoWriter, Predictor, open_inputs  # imports mmdet
    truth = results.read_truth(run)
    if truth is None or run.checkpoint is None:
        return None
    paths = [truth.images / image['file_name'] for image in truth.coco.dataset['images']]
    if not all(path.is_file() for path in paths[:3]):
        return None
    predictor = Predictor(str(run.checkpoint), batch_size=batch_size)
    writer = CocoWriter(predictor.classes, str(truth.path))
    names = {str(path): image['file_name']
             for path, image in zip(paths, truth.coco.dataset['images'], strict=True)}
    with progress_bar() as bar:
        task = bar.add_task(f'detect, {run.name}', total=len(paths))
        for frame, sample in predictor.stream(open_inputs(paths)):
            writer.add(frame._replace(name=names[frame.path]), sample)
            bar.advance(task)
    path = results.predictions_file(run)
    writer.write(path)
    return path


def run_report(args: argparse.Namespace) -> None:
    """Read the runs, detect where it is needed, write the page."""
    from mmrla.evaluation.report import read_run, results, write_report
    from mmrla.evaluation.report.page import Options
    start = time.perf_counter()
    runs = [read_run(folder) for folder in args.runs]
    for run in runs:
        if not args.no_predict and not results.has_predictions(run):
            if predict(run, args.batch_size) is None:
                say(f'{run.name}: no detections (its checkpoint, annotations or images '
                    'are not here): the page has its curves and config only')
    with error_console.status('reading the runs') as status:
        content = write_report(
            runs, args.out, Options(args.score, args.images, args.inside, not args.no_cost),
            lambda step: status.update(step))
    for run, figures in zip(content['runs'], content.get('figures', {}).get('values', []),
                            strict=False):
        for kind, values in (figures or {}).items():
            say(f'{run["name"]}: {kind} AP {100 * values[0]:.1f}, '
                f'AP50 {100 * values[1]:.1f}')
    size = args.out.stat().st_size / 2**20
    say(f'report: {args.out} ({size:.1f} MB, {time.perf_counter() - start:.0f} s)')


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    silence_logs()
    with clear_errors():
        run_report(args)


if __name__ == '__main__':
    main()
