"""The results of tools/dev/chaos.py that docs/reliability.md states."""
from support import REPO, load_tool

chaos = load_tool('dev/chaos')
FILES = sorted((REPO / 'docs/evidence/chaos').glob('*.json'))


def test_the_table_is_made_from_the_results():
    """docs/reliability.md has the table that ``chaos.py --summarise`` prints."""
    table = chaos.summarise(chaos.read_results(FILES))
    assert table in (REPO / 'docs/reliability.md').read_text()


def test_all_results_are_good():
    bad = [(result['scenario'], result['seed']) for result in chaos.read_results(FILES)
           if not chaos.is_good(result)]
    assert not bad


def test_every_scenario_has_results():
    found = {result['scenario'] for result in chaos.read_results(FILES)}
    assert found == set(chaos.SCENARIOS)
