"""The ratios of docs/performance.md are those of the files in docs/performance/."""
import json

import pytest

from support import REPO, load_tool

FILES = sorted((REPO / 'docs/performance').glob('*.json'))
PROFILE = REPO / 'docs/performance/profile/results.json'
GROWTH = REPO / 'docs/performance/growth/results.json'


def ratios_of(model):
    """The ratios of a model's times, as the page shows them."""
    return ['{1:.3f} ({0:.3f} to {2:.3f})'.format(*times[key])
            for times in model['times'].values() for key in times if key.startswith('ratio')]


def test_there_are_results():
    assert FILES


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_the_page_has_the_measured_ratios(path):
    page = (REPO / 'docs/performance.md').read_text()
    for model in json.loads(path.read_text())['models'][1:]:
        if 'efficient_conv_bn_eval' in model['name']:
            continue  # a baseline
        missing = [ratio for ratio in ratios_of(model) if ratio not in page]
        assert not missing, f'{path.name}, {model["name"]}: the page has other ratios'


def test_the_page_has_the_table_of_growth():
    page = (REPO / 'docs/performance.md').read_text()
    rows = json.loads(GROWTH.read_text())['rows']
    tool = load_tool('dev/measure_growth')
    assert len(rows) == len(list(tool.settings()))
    assert tool.table(rows) in page
    assert 'performance/growth/growth.png' in page and (GROWTH.parent / 'growth.png').exists()


def test_the_page_has_the_profile():
    rows = json.loads(PROFILE.read_text())['rows']
    tool = load_tool('dev/profile_cost')
    assert list(rows) == list(tool.CASES)
    assert tool.table(rows) in (REPO / 'docs/performance.md').read_text()
