"""The growth of the cost with the work."""
import json

import pytest

from support import load_tool


@pytest.fixture(scope='module')
def tool():
    return load_tool('dev/measure_growth')


def test_every_setting_is_measured_once_and_differs_in_one_value(tool):
    settings = list(tool.settings())
    assert len(settings) == 14 and tool.DEFAULT in settings
    for setting in settings:
        assert sum(setting[name] != tool.DEFAULT[name] for name in setting) <= 1


def test_more_hidden_channels_save_more_for_backward(tool):
    rows = [tool.measure(dict(depth=18, k=k, side=64, batch=1), rounds=1) for k in (4, 64)]
    assert rows[0]['saved_ratio'] < rows[1]['saved_ratio']
    assert set(rows[0]['ratios']) == set(tool.MODES)


def test_the_table_and_the_plot_are_made_from_results(tool, tmp_path):
    rows = [dict(setting, ratios=dict.fromkeys(tool.MODES, [1.1, 1.2, 1.3]), saved_ratio=0.5)
            for setting in tool.settings()]
    (tmp_path / 'results.json').write_text(json.dumps(dict(rows=rows)))
    tool.main(['--from-json', str(tmp_path / 'results.json'), '--output', str(tmp_path)])
    table = (tmp_path / 'table.md').read_text().splitlines()
    assert len(table) == 2 + len(rows)
    assert '| 152 | 32 | 320 | 1 | 1.200 (1.100 to 1.300) |' in table[6]
    assert (tmp_path / 'growth.png').stat().st_size > 10_000
