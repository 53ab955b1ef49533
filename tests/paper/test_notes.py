"""docs/paper_notes.md: every test it names exists, and nearly every item has a check."""
import re

from support import REPO

NOTES = (REPO / 'docs/paper_notes.md').read_text()


def items():
    """The rows of the tables of items: their cells."""
    part = NOTES[NOTES.index('## Every item'):NOTES.index('## Do the tests')]
    rows = [line.strip('|').split('|') for line in part.splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != 'item']


def test_every_test_that_is_named_exists():
    named = set(re.findall(r'`(?:tests/)?([\w/]+\.py)::(\w+)`', NOTES))
    assert len(named) > 50
    for path, name in named:
        assert f'def {name}(' in (REPO / 'tests' / path).read_text(), f'{path}::{name}'


def test_nearly_every_item_that_can_be_checked_is():
    checks = [row[-1] for row in items()]
    assert len(checks) > 65
    can_be_checked = [check for check in checks if not check.startswith('needs a training')]
    checked = [check for check in can_be_checked if '::' in check or check == 'as above']
    unchecked = [check for check in can_be_checked if check not in checked]
    assert all(check.startswith('no check: ') for check in unchecked)
    assert len(checked) >= 0.95 * len(can_be_checked)
    assert len(unchecked) == 2, 'the page says two'
