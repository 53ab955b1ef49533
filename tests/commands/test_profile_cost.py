"""The profile of RLA's additional time."""
import json

import pytest

from support import load_tool


@pytest.fixture(scope='module')
def tool():
    return load_tool('dev/profile_cost')


@pytest.mark.parametrize('name, shapes, kind', [
    ('aten::mkldnn_convolution', [[1, 64, 8, 8], [32, 64, 1, 1], []], 'convolutions of h'),
    ('aten::mkldnn_convolution', [[1, 32, 8, 8], [256, 64, 1, 1], []], 'other convolutions'),
    ('aten::convolution_backward', [[1, 64, 8, 8], [1, 32, 8, 8], [64, 32, 1, 1]],
     'convolutions of h, backward'),
    ('aten::_slow_conv2d_backward', [[1, 64, 8, 8], [1, 64, 8, 8], [64, 64, 3, 3]],
     'other convolutions, backward'),
    ('Conv', [[1, 32, 8, 8], [32, 1, 1, 1]], 'convolutions of h'),
    ('aten::addcmul', [], 'norms'), ('aten::add_', [], 'sums and products'),
    ('Add', [], 'sums and products'), ('aten::addmm', [], 'matrix products'),
    ('ReorderInput', [], 'copies'), ('GlobalAveragePool', [], 'pooling'),
    ('aten::view', [], 'rest')])
def test_operators_are_sorted_by_name_and_weight(tool, name, shapes, kind):
    assert tool.kind_of(tool.Call(name, shapes, 1)) == kind


def test_each_call_counts_with_its_shortest_time(tool):
    runs = [[tool.Call('aten::tanh', [], a), tool.Call('aten::tanh', [], b)]
            for a, b in ((3, 10), (5, 7))]
    found = tool.by_kind(runs)
    assert found['tanh'] == sum(found.values()) == 10
    with pytest.raises(RuntimeError, match='differ in their operators'):
        tool.by_kind([runs[0], [tool.Call('aten::relu', [], 1)] * 2])


def test_runs_of_onnxruntime_are_told_apart(tool, tmp_path):
    node = dict(cat='Node', name='a_kernel_time', ts=10, dur=2, args=dict(
        op_name='Conv', input_type_shape=[{'float': [1, 3, 8, 8]}, {'float': [32, 3, 1, 1]}]))
    end = dict(cat='Session', name='model_run', dur=9)
    (tmp_path / 'run.json').write_text(json.dumps(
        [dict(end, name='session_initialization'), node, end, dict(node, ts=5, dur=1), node, end]))
    runs = tool.onnx_calls(tmp_path / 'run.json')
    assert [[call.time for call in run] for run in runs] == [[0, 2], [0, 1, 4, 2]]
    assert [tool.kind_of(call) for call in runs[0]] == ['between operators', 'convolutions of h']


@pytest.mark.parametrize('mode', ['train', 'fused', 'onnx'])
def test_the_shares_add_up_to_the_ratio(tool, mode):
    row = tool.measure(tool.Case(tool.RLA, mode, ('--batch', '1', '--size', '64', '64'),
                                 ('depth=18', 'base_channels=48')), rounds=1)
    assert row['sum'] == pytest.approx(sum(row['shares'].values()))
    assert sum(row['plain'].values()) == pytest.approx(1)
    assert row['plain']['convolutions of h'] == 0 < row['shares']['convolutions of h']
    assert (row['shares']['convolutions of h, backward'] > 0) == (mode == 'train')


def test_the_table_is_made_from_results(tool, tmp_path):
    rows = {name: dict(shares=dict.fromkeys(tool.COLUMNS, 0.01), sum=0.12) for name in tool.CASES}
    (tmp_path / 'results.json').write_text(json.dumps(dict(rows=rows)))
    tool.main(['--from-json', '--output', str(tmp_path)])
    lines = (tmp_path / 'table.md').read_text().splitlines()
    assert len(lines) == 3 + len(tool.COLUMNS)
    assert lines[-1].count('**+12.0**') == len(tool.CASES)
