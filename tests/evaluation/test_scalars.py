"""Reading the logged scalars of a run."""
import json

from mmrla.evaluation.scalars import read_scalars


def write_log(run, timestamp, text):
    path = run / timestamp / 'vis_data/scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_logs_of_all_starts_are_read_in_order(tmp_path):
    write_log(tmp_path, '20260102_000000', '{"step": 3}\n')
    write_log(tmp_path, '20260101_000000', '{"step": 1}\n{"step": 2}\n')
    assert [scalars['step'] for scalars in read_scalars(tmp_path)] == [1, 2, 3]


def test_an_incomplete_last_line_is_skipped(tmp_path):
    text = json.dumps(dict(step=1, loss=0.5)) + '\n' + json.dumps(dict(step=2, loss=0.4))[:-5]
    write_log(tmp_path, '20260101_000000', text)
    assert read_scalars(tmp_path) == [dict(step=1, loss=0.5)]


def test_a_folder_without_a_log_has_no_scalars(tmp_path):
    assert read_scalars(tmp_path) == []
    assert read_scalars(tmp_path / 'missing') == []
