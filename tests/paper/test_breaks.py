"""tools/dev/break_equations.py: its breaks still apply, and every equation has one.

The tool itself runs the broken tests, which takes minutes.
"""
import ast

import pytest

from support import REPO, load_tool

tool = load_tool('dev/break_equations')


def names_of(path):
    """The names of the tests of a file."""
    tree = ast.parse((REPO / path).read_text())
    return [node.name for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')]


@pytest.mark.parametrize('broken', tool.BREAKS, ids=lambda broken: broken.name)
def test_a_break_applies_to_the_source(broken):
    assert broken.old in (REPO / broken.path).read_text(), \
        f'{broken.path} no longer has {broken.old!r}'
    assert broken.old != broken.new


def test_every_test_of_an_equation_has_a_break():
    words = [word for broken in tool.BREAKS if broken.tests == tool.THEORY
             for word in broken.words.split(' or ')]
    assert not [name for name in names_of(tool.THEORY) if not any(word in name for word in words)]


def test_every_recipe_has_a_break():
    """The four recipes of the classifiers, and the detectors'."""
    names = ' '.join(broken.path for broken in tool.BREAKS if broken.tests == tool.RECIPES)
    for schedule in ('schedule_120e', 'schedule_cifar_300e', 'schedule_mobilenet_400e',
                     'schedule_refined_200e', 'schedule_1x'):
        assert schedule in names
