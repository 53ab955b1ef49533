"""The scripts of tools/ and the interface of the commands."""
import importlib
import pkgutil

import pytest

from mmrla import commands
from support import REPO, load_tool

COMMANDS = sorted(path.stem for path in (REPO / 'tools').glob('*.py') if path.stem != 'setup_env')
DEVELOPER_TOOLS = sorted(path.stem for path in (REPO / 'tools/dev').glob('*.py'))


@pytest.mark.parametrize('name', COMMANDS)
def test_a_script_runs_the_command_of_its_name(name):
    assert load_tool(name).main is importlib.import_module(f'mmrla.commands.{name}').main


def test_every_command_has_a_script():
    modules = [info.name for info in pkgutil.iter_modules(commands.__path__)]
    found = [name for name in modules
             if hasattr(importlib.import_module(f'mmrla.commands.{name}'), 'main')]
    assert sorted(found) == COMMANDS


@pytest.mark.parametrize('name', [*COMMANDS, *(f'dev/{name}' for name in DEVELOPER_TOOLS)])
def test_every_argument_has_a_help_text(name):
    module = load_tool(name) if '/' in name else importlib.import_module(f'mmrla.commands.{name}')
    parser = module.build_parser()
    missing = [action.dest for action in parser._actions if not action.help]
    assert not missing
    with pytest.raises(SystemExit) as found:
        module.main(['--help'])
    assert found.value.code == 0
