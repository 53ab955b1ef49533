"""Check the results of ``make demo``.

    python tools/dev/check_demo.py work_dirs/demo

The exit code is 1 if the last box AP on the validation images is below --min-ap, or if
a picture is missing.
"""
import argparse
from pathlib import Path
from typing import List, Optional, Sequence

import cv2

from mmrla.evaluation.scalars import read_scalars

METRIC = 'coco/bbox_mAP'
PICTURES = ('curves.png', 'detections.png')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Check the results of make demo.')
    parser.add_argument('run', type=Path, help='work dir of the demo')
    parser.add_argument('--min-ap', type=float, default=0.5, help='lowest box AP to accept')
    return parser


def problems(run: Path, min_ap: float) -> List[str]:
    """Return the problems of a run, one line each."""
    found = []
    values = [scalars[METRIC] for scalars in read_scalars(run) if METRIC in scalars]
    if not values:
        found.append(f'{run} has no evaluation ({METRIC} in */vis_data/scalars.json)')
    elif not values[-1] >= min_ap:
        found.append(f'{METRIC} of {run} is {values[-1]:.3f}, but {min_ap:g} is required')
    for name in PICTURES:
        if cv2.imread(str(run / name)) is None:
            found.append(f'picture {run / name} is missing or cannot be decoded')
    return found


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    found = problems(args.run, args.min_ap)
    if found:
        raise SystemExit('\n'.join(found))
    print(f'{args.run}: {METRIC} is at least {args.min_ap:g}, and all pictures exist')


if __name__ == '__main__':
    main()
