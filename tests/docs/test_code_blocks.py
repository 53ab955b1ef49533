"""The code blocks of README.md and docs/*.md: configs build, commands and links exist.

Nothing is executed but configs and import statements.
"""
import argparse
import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS, RUNNERS, init_default_scope

from mmrla.commands import test as test_command
from mmrla.commands import train as train_command
from mmrla.weights.authors import AUTHORS_FILES
from support import REPO, load_tool

PAGES = [REPO / 'README.md', *sorted((REPO / 'docs').glob('*.md'))]
# Names that a config assigns. A block with one of them is a config.
CONFIG_NAMES = {'_base_', 'custom_imports', 'default_hooks', 'model', 'runner_type'}
# A block without _base_ is a part of a config. It is merged into this one.
BASE = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'
# Programs that are not ours; their arguments are not checked.
OTHER_PROGRAMS = {'cat', 'cd', 'cp', 'curl', 'docker', 'echo', 'export', 'git', 'ls', 'mim',
                  'mkdir', 'pip', 'pre-commit', 'sbatch', 'scancel', 'source', 'squeue', 'unzip',
                  'wget'}
# Words of the shell before a command.
KEYWORDS = {'do', 'then', 'else', '!', 'time'}
# Folders of the repository. A path below any other folder is an output or the user's data.
FOLDERS = ('configs/', 'docs/', 'mmrla/', 'requirements/', 'tests/', 'tools/', '.ci/')


class Block(NamedTuple):
    """A code block.

    Attributes:
        place: The file and the line of its first line of code.
        language: What follows the opening fence.
        text: The code.
    """
    place: str
    language: str
    text: str


def code_blocks(page: Path) -> Iterator[Block]:
    """The fenced code blocks of a page."""
    language, start, lines = None, 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r'\s*```(\w*)', line)
        if fence is None:
            lines.append(line)
        elif language is None:
            language, start, lines = fence[1], number + 1, []
        else:
            yield Block(f'{page.relative_to(REPO)}:{start}', language, '\n'.join(lines))
            language = None
    assert language is None, f'{page.relative_to(REPO)}:{start}: the code block has no end'


BLOCKS = [block for page in PAGES for block in code_blocks(page)]


def blocks_of(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        'block', [pytest.param(block, id=block.place) for block in BLOCKS
                  if block.language in languages])


# Python

def assigned_names(tree: ast.Module) -> set:
    return {target.id for node in tree.body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)}


def parse(block: Block) -> ast.Module:
    try:
        return ast.parse(block.text)
    except SyntaxError as error:
        pytest.fail(f'{block.place}: line {error.lineno} of the block: {error.msg}')


def is_config(tree: ast.Module) -> bool:
    """Whether a block assigns the keys of a config and nothing but assigns."""
    return (bool(assigned_names(tree) & CONFIG_NAMES)
            and all(isinstance(node, (ast.Assign, ast.Expr)) for node in tree.body))


def load_config(block: Block, tree: ast.Module, folder: Path) -> Config:
    """Load a block as a config file; a part of a config inherits from ``BASE``."""
    text = block.text if '_base_' in assigned_names(tree) else f'_base_ = {BASE!r}\n{block.text}'
    path = folder / 'block.py'
    path.write_text(text)
    return Config.fromfile(path)


def head_classes(value: object) -> Iterator[int]:
    """Every ``num_classes`` of a model."""
    if isinstance(value, dict):
        if isinstance(value.get('num_classes'), int):
            yield value['num_classes']
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from head_classes(entry)


def check_classes(cfg: Config, names: set) -> None:
    """A block with its own classes has as many outputs as classes, in every data set."""
    if 'metainfo' not in names:
        return
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        classes = cfg[loader].dataset.metainfo.classes
        assert set(head_classes(cfg.model)) == {len(classes)}, f'num_classes and {loader} differ'


def build(cfg: Config) -> None:
    """Build the model, the hooks and the runner class that a config names."""
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    MODELS.build(cfg.model)
    for name, hook in cfg.get('default_hooks', {}).items():
        if hook is not None and name != 'visualization':  # that one needs a runner's visualizer
            HOOKS.build(hook)
    if 'runner_type' in cfg:
        assert RUNNERS.get(cfg.runner_type) is not None, f'there is no runner {cfg.runner_type}'


@blocks_of('python', 'py')
def test_python_blocks_load_and_build_as_printed(block, tmp_path):
    tree = parse(block)
    try:
        if is_config(tree):
            cfg = load_config(block, tree, tmp_path)
            check_classes(cfg, assigned_names(tree))
            build(cfg)
        else:  # a program: its imports exist
            imports = [node for node in ast.walk(tree)
                       if isinstance(node, (ast.Import, ast.ImportFrom))]
            exec(compile(ast.Module(imports, []), block.place, 'exec'), {})
    except Exception as error:
        pytest.fail(f'{block.place}: {type(error).__name__}: {error}')


# Shell

class Command(NamedTuple):
    """A command of a block, as words.

    Attributes:
        place: Its file and line.
        words: The program and its arguments.
    """
    place: str
    words: List[str]


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a block, without comments, assignments and keywords of the shell."""
    page, first = block.place.rsplit(':', 1)
    text = re.sub(r'<<\s*\'?(\w+)\'?\n.*?\n\1\n?', '\n', block.text + '\n', flags=re.S)
    line, number = '', 0
    for offset, part in enumerate(text.splitlines()):
        number = number if line else int(first) + offset
        line += part.removeprefix('$ ')
        if line.endswith('\\'):
            line = line[:-1] + ' '
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=';&|')
        lexer.whitespace_split = True
        yield from split_commands(f'{page}:{number}', list(lexer))
        line = ''


def split_commands(place: str, words: List[str]) -> Iterator[Command]:
    """The commands of a line of words."""
    command: List[str] = []
    for word in [*words, ';']:
        if set(word) <= set(';&|'):
            if command and command[0] not in ('for', 'done', 'fi', 'if'):
                yield Command(place, command)
            command = []
        elif command or not (re.match(r'\w+=', word) or word in KEYWORDS):
            command.append(word.rstrip(')'))


class _Parser(argparse.ArgumentParser):
    """Only its ``error`` is used."""

    def error(self, message: str) -> None:
        raise ValueError(message)


def parse_arguments(parser: argparse.ArgumentParser, words: List[str]) -> None:
    """Parse the arguments of a command; an unknown or missing one raises ValueError."""
    parser.error = _Parser.error.__get__(parser)
    parser.parse_args(words)


def check_script(path: str, words: List[str]) -> None:
    """Check the arguments of a script by its own parser."""
    name = path.removeprefix('tools/').removesuffix('.py')
    if not (REPO / path).is_file():
        raise ValueError(f'{path} does not exist')
    if (REPO / f'mmrla/commands/{name}.py').is_file():
        parse_arguments(importlib.import_module(f'mmrla.commands.{name}').build_parser(), words)
    elif name.startswith('dev/'):
        parse_arguments(load_tool(name).build_parser(), words)
    else:
        source = (REPO / path).read_text()
        unknown = [word for word in words if word.startswith('-') and f"'{word}'" not in source]
        if unknown:
            raise ValueError(f'{path} has no option {unknown[0]}')


def check_launcher(path: str, words: List[str]) -> None:
    """Check the arguments of a shell script by the parser of the command that it starts."""
    config = dict(dist_train=0, dist_test=0, slurm_train=2)[Path(path).stem]
    count = dict(dist_train=2, dist_test=3, slurm_train=4)[Path(path).stem]
    if len(words) < count:
        raise ValueError(f'{path} needs {count} arguments')
    if Path(path).stem == 'dist_test':
        return parse_arguments(test_command.build_parser(), [*words[:2], *words[3:]])
    return parse_arguments(train_command.build_parser(), [words[config], *words[count:]])


def check_subcommand(words: List[str]) -> None:
    """Check the arguments of ``mmrla COMMAND``."""
    if not words or words[0].startswith('-'):
        return
    name = words[0].replace('-', '_')
    if not (REPO / f'mmrla/commands/{name}.py').is_file():
        raise ValueError(f'mmrla has no command {words[0]}')
    parse_arguments(importlib.import_module(f'mmrla.commands.{name}').build_parser(), words[1:])


def check_make(words: List[str]) -> None:
    """Check the targets of make."""
    targets = re.findall(r'^([\w-]+):', (REPO / 'Makefile').read_text(), re.M)
    unknown = [word for word in words if '=' not in word and not word.startswith('-')
               and word not in targets]
    if unknown:
        raise ValueError(f'the Makefile has no target {unknown[0]}')


def check_path(word: str) -> None:
    """Check that a path in the repository, a config of a package or a published file exists."""
    if any(mark in word for mark in '*{}$<>') or '...' in word:
        return
    path = word.split('::')[0] if word.startswith('tests/') else word
    if path.startswith('docs/evidence/'):  # results, written by the command
        return
    if path.startswith(FOLDERS) and not (REPO / path).exists():
        raise ValueError(f'{path} does not exist')
    if word.startswith('authors://') and word.removeprefix('authors://') not in AUTHORS_FILES:
        raise ValueError(f'{word} is not known')
    package, separator, name = word.partition('::')
    if separator and package == 'mmrla':
        check_path(name)
    elif separator and package in ('mmdet', 'mmpretrain'):
        folder = Path(importlib.import_module(package).__file__).parent / '.mim/configs'
        if not (folder / name).is_file():
            raise ValueError(f'{package} has no config {name}')


def check_command(words: List[str]) -> None:
    """Check a command; a wrong one raises ValueError."""
    program, *arguments = words
    if program in OTHER_PROGRAMS:
        return
    for word in words:
        check_path(word)
    script = script_of(program, arguments)
    if script is not None:
        program, *arguments = script
    if program.startswith('tools/') and program.endswith('.py'):
        check_script(program, arguments)
    elif program.startswith('tools/') and program.endswith('.sh'):
        check_launcher(program, arguments)
    elif program == 'mmrla':
        check_subcommand(arguments)
    elif program == 'make':
        check_make(arguments)
    elif program not in ('python', 'pytest', 'venv', '.ci/run'):
        raise ValueError(f'{program} is not known; if it is not ours, add it to OTHER_PROGRAMS')


def script_of(program: str, arguments: List[str]) -> Optional[List[str]]:
    """The script or module of a call of the interpreter, with its arguments."""
    if not re.fullmatch(r'python(3(\.\d+)?)?', program) or not arguments:
        return None
    if arguments[0] == '-m':
        return arguments[1:]
    return ['python'] if arguments[0] == '-c' else arguments


@blocks_of('bash', 'sh', 'shell', 'console')
def test_the_files_and_options_of_every_command_exist(block):
    wrong = []
    for command in commands_of(block):
        try:
            check_command(command.words)
        except (ValueError, ImportError, argparse.ArgumentError) as error:
            wrong.append(f'{command.place}: {shlex.join(command.words)[:100]}: {error}')
    assert not wrong, '\n'.join(wrong)


@pytest.mark.parametrize('line, message', [
    ('tools/dist_train.sh configs/no_such_config.py 4', 'does not exist'),
    ('tools/dist_train.sh configs/faster_rcnn_rla_r50_fpn_1x.py 4 --pretraind x', 'pretraind'),
    ('python tools/no_such_tool.py', 'does not exist'),
    ('OMP_NUM_THREADS=2 python tools/test.py CONFIG', 'checkpoint'),
    ('make no-such-target', 'no-such-target'),
    ('mmrla no-such-command', 'no-such-command'),
    ('python tools/benchmark.py mmdet::no_such_config.py', 'no_such_config'),
    ('python tools/test.py CONFIG authors://no_such_file', 'no_such_file'),
    ('make env && trian CONFIG', 'trian'),
])
def test_a_wrong_command_would_be_found(line, message):
    block = Block('README.md:1', 'bash', f'# a comment\n{line}   # another')
    with pytest.raises(ValueError, match=message):
        for command in commands_of(block):
            check_command(command.words)


# Links

@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_to_files_and_headings_exist(page):
    wrong = []
    for number, line in enumerate(without_code(page).splitlines(), 1):
        for target in re.findall(r'\]\(([^)\s]+)\)', line):
            name, _, heading = target.partition('#')
            file = page.parent / name if name else page
            if '://' in target:
                continue
            if not file.exists():
                wrong.append(f'{page.relative_to(REPO)}:{number}: {name} does not exist')
            elif heading and heading not in headings(file):
                wrong.append(f'{page.relative_to(REPO)}:{number}: no heading #{heading}')
    assert not wrong, '\n'.join(wrong)


def without_code(page: Path) -> str:
    """The text of a page; the lines of code blocks are empty."""
    return re.sub(r'^\s*```.*?^\s*```', lambda block: '\n' * block[0].count('\n'),
                  page.read_text(), flags=re.S | re.M)


def headings(page: Path) -> set:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r'^#+ (.+)$', without_code(page), re.M)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}
