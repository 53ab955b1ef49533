"""The metric of faster-coco-eval."""
from support import call


def test_faster_coco_eval_agrees_with_pycocotools():
    output = call('tools/dev/benchmark_evaluation.py', '--images', 30, '--detections', 20)
    assert 'reported figures equal: True' in output
    assert 'largest difference of the twelve: 0.0e+00' in output
    assert 'mAP 0.000' not in output, 'no detection was correct: the comparison is empty'
