"""The check of the results of the demo."""
import json

import cv2
import numpy as np
import pytest

from support import load_tool

check_demo = load_tool('dev/check_demo')


def write_run(run, values, pictures=check_demo.PICTURES):
    """Write the log and the pictures of a run."""
    log = run / '20260101_000000/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('\n'.join(json.dumps({'coco/bbox_mAP': value, 'step': step})
                             for step, value in enumerate(values)))
    for name in pictures:
        cv2.imwrite(str(run / name), np.zeros((8, 8, 3), np.uint8))


def test_a_good_run_passes(tmp_path):
    write_run(tmp_path, [0.1, 0.5])
    check_demo.main([str(tmp_path)])


@pytest.mark.parametrize('values, pictures, words', [
    ([0.6, 0.49], check_demo.PICTURES, 'is 0.490, but 0.5 is required'),
    ([float('nan')], check_demo.PICTURES, 'is nan, but 0.5 is required'),
    ([], check_demo.PICTURES, 'has no evaluation'),
    ([0.6], ['curves.png'], 'detections.png is missing'),
    ([0.6], ['detections.png'], 'curves.png is missing')])
def test_a_bad_run_fails(values, pictures, words, tmp_path):
    write_run(tmp_path, values, pictures)
    with pytest.raises(SystemExit, match=words):
        check_demo.main([str(tmp_path)])
