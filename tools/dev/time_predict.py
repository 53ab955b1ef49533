"""Compare the time of ``mmrla predict`` with that of a bare loop over the detector.

    python tools/dev/time_predict.py work_dirs/DATA IMAGES --rounds 5

The bare loop loads an image, applies the test pipeline and calls ``test_step``. ``mmrla
predict`` also draws the pictures and writes predictions.json. Both run alternately in one
process, after a round that is not counted. Starting Python and reading the checkpoint is
counted for neither.
"""
import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

import torch
from mmengine.dataset import pseudo_collate

import mmrla
from mmrla.commands import predict
from mmrla.commands.logs import silence_logs
from mmrla.inference import open_inputs


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', help='a trained detector or the work dir of a training')
    parser.add_argument('inputs', nargs='+', help='images or folders')
    parser.add_argument('--rounds', type=int, default=5, help='measured rounds')
    return parser


def bare_loop(predictor: mmrla.Predictor, inputs: List[str]) -> None:
    """Detect and keep nothing."""
    pipeline = predictor.inferencer.pipeline
    for frame in open_inputs(inputs):
        with torch.inference_mode():
            predictor.model.test_step(pseudo_collate([pipeline(frame.path)]))


def command(predictor: mmrla.Predictor, inputs: List[str]) -> None:
    """Do what ``mmrla predict`` does once the detector is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        words = ['checkpoint', *inputs, '-o', str(Path(folder) / 'out')]
        predict.write_predictions(predictor, open_inputs(inputs), predict.parse_args(words))


def seconds(function: Callable[..., None], *arguments: Any) -> float:
    """Time one call."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    silence_logs()
    predictor = mmrla.Predictor(args.checkpoint)
    pairs = [[seconds(function, predictor, args.inputs) for function in (bare_loop, command)]
             for _ in range(args.rounds + 1)][1:]
    for bare, whole in pairs:
        print(f'bare loop {bare:.2f} s, mmrla predict {whole:.2f} s, ratio {whole / bare:.3f}')
    print(f'median ratio {statistics.median(whole / bare for bare, whole in pairs):.3f}')


if __name__ == '__main__':
    main()
