"""The scripts of tools/ and the interface of the commands."""
import importlib
import pkgutil

import pytest

from mmrla import commands
from mmrla.commands import make_shapes
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


def test_make_shapes_names_a_folder_with_other_files(tmp_path):
    (tmp_path / 'mine.txt').write_text('precious')
    with pytest.raises(SystemExit, match=f'{tmp_path} contains other files'):
        make_shapes.main([str(tmp_path), '--train', '1', '--val', '1'])


def test_make_shapes_prints_the_folder(tmp_path, capsys):
    make_shapes.main([str(tmp_path / 'a'), '--classification', '--train', '1', '--val', '1'])
    assert capsys.readouterr().out == f'the images are in {tmp_path}/a\n'
