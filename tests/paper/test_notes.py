"""docs/paper_notes.md: every test it names exists, and nearly every item has a check."""
import re

from support import REPO

NOTES = (REPO / 'docs/paper_notes.md').read_text()
NEEDS_A_TRAINING = 'needs a training'


def items():
    """The rows of the tables of items: their cells."""
    part = NOTES[NOTES.index('## Every item'):NOTES.index('## Do the tests')]
    rows = [line.strip('|').split('|') for line in part.splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != 'item']


def test_every_test_that_is_named_exists():
    named = set(re.findall(r'`(?:tests/)?([\w/]+\.py)::(\w+)`', NOTES))
    assert len(named) > 70
    for path, name in named:
        assert f'def {name}(' in (REPO / 'tests' / path).read_text(), f'{path}::{name}'


def test_every_item_is_checked_or_labelled():
    for row in items():
        check = row[-1]
        assert '::' in check or check == NEEDS_A_TRAINING or check.startswith('no check: '), row


def test_the_page_states_how_many_items_are_checked():
    checks = [row[-1] for row in items()]
    possible = [check for check in checks if check != NEEDS_A_TRAINING]
    checked = [check for check in possible if '::' in check]
    assert len(checked) >= 0.95 * len(possible)
    stated = (f'This page has {len(checks)} items. {len(checks) - len(possible)} need a training. '
              f'Of the other {len(possible)}, {len(checked)} have a check '
              f'({100 * len(checked) / len(possible):.0f}%).')
    assert stated in ' '.join(NOTES.split())


def test_every_claim_of_the_text_that_is_tested_is_listed():
    tests = re.findall(r'^def (test_\w+)', (REPO / 'tests/paper/test_claims.py').read_text(),
                       re.MULTILINE)
    assert not [name for name in tests if f'paper/test_claims.py::{name}`' not in NOTES]


def test_every_equation_of_the_theory_is_listed():
    tests = re.findall(r'^def (test_\w+)', (REPO / 'tests/paper/test_theory.py').read_text(),
                       re.MULTILINE)
    assert not [name for name in tests if f'paper/test_theory.py::{name}`' not in NOTES]
