"""The command ``mmrla``, its screen and its doctor."""
import contextlib
import io
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from rich.console import Console

import mmrla_cli
from mmrla.commands import COMMANDS, doctor, train
from mmrla.commands.live import LiveScreen, fitting, line_of
from mmrla.datasets import make_shapes
from support import CONFIGS, REPO

TINY = ['model.backbone.base_channels=8', 'model.neck.in_channels=[8,16,32,64]',
        'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False',
        'train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'param_scheduler.0.end=2']


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_has_a_module(name):
    module = import_module(f'mmrla.commands.{name.replace("-", "_")}')
    assert callable(module.main) and callable(module.build_parser)


def test_the_help_names_every_command_without_importing_torch():
    code = ("import sys, mmrla_cli; mmrla_cli.main(['--help']); "
            "print('torch' in sys.modules, 'mmrla' in sys.modules)")
    output = subprocess.run([sys.executable, '-c', code], cwd=REPO, text=True,
                            capture_output=True, check=True).stdout
    assert all(f'  {name} ' in output for name in COMMANDS)
    assert output.splitlines()[-1] == 'False False'


def test_the_version(capsys):
    mmrla_cli.main(['--version'])
    assert re.fullmatch(r'mmrla \d+\.\d+\.\d+\S*\n', capsys.readouterr().out)


@pytest.mark.parametrize('words', [['a.py', '--gpus', '2', '--amp'], ['a.py', '--gpus=2', '--amp']])
def test_gpus_start_torchrun(words, monkeypatch):
    called = []
    monkeypatch.setattr(mmrla_cli, 'run_torchrun', called.append)
    mmrla_cli.run_distributed('train', 2, words)
    assert called == [['--standalone', '--nproc-per-node=2', '-m', 'mmrla', 'train', 'a.py',
                       '--amp', '--launcher', 'pytorch']]


@pytest.fixture(scope='module')
def screen(tmp_path_factory):
    """What a training of one epoch prints, and its log."""
    folder = tmp_path_factory.mktemp('run')
    data = make_shapes(folder / 'data/shapes', train=8, val=2)
    script = 'import mmrla_cli; mmrla_cli.main()'
    result = subprocess.run(
        [sys.executable, '-c', script, 'train', str(CONFIGS / 'shapes/faster_rcnn_rla_r18_fpn.py'),
         '--work-dir', str(folder / 'work'), '--cfg-options', *TINY], cwd=folder, text=True,
        capture_output=True, env={**os.environ, 'PYTHONPATH': str(REPO)}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert data.is_dir()
    return result, next((folder / 'work').glob('*/*.log')).read_text()


def test_a_training_prints_about_a_dozen_lines(screen):
    lines = screen[0].stdout.splitlines()
    assert 8 <= len(lines) <= 16, lines
    text = screen[0].stdout
    for words in ('FasterRCNN', 'random initial values', '6 classes', 'AdamW at 0.001', 'AP50',
                  'mmrla report'):
        assert words in text, f'{words} is not on the screen'
    assert not screen[0].stderr, screen[0].stderr


def test_the_bar_leaves_printed_text_to_the_log(capsys):
    screen = LiveScreen('train', 'mine.py')
    screen.console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with contextlib.redirect_stdout(io.StringIO()) as log:
        screen._start(3)
        print('of pycocotools')
        screen.stop()
    assert log.getvalue() == 'of pycocotools\n'
    assert 'pycocotools' not in screen.console.file.getvalue()


@pytest.mark.parametrize('width, names', [
    (100, ['epoch', 'AP', 'AP50', 'mask AP50', 'minutes']),
    (36, ['epoch', 'AP', 'AP50', 'minutes']),
    (5, ['epoch', 'minutes'])])
def test_a_row_fits_on_the_screen(width, names):
    cells = [(name, '1') for name in ('epoch', 'AP', 'AP50', 'mask AP50', 'minutes')]
    fitted = fitting(cells, width)
    assert [name for name, _ in fitted] == names
    assert width == 5 or len(line_of(fitted, 0)) <= width


def test_the_log_file_has_everything(screen):
    for words in ('System environment', 'neck=dict(', 'Epoch(train)', 'coco/bbox_mAP',
                  'Average Precision'):
        assert words in screen[1], f'{words} is not in the log'


def test_a_missing_logging_package_is_named(monkeypatch):
    monkeypatch.setattr(train, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit, match='pip install wandb'):
        train.add_backends({}, ['wandb'])


def test_a_logging_backend_is_added_once(monkeypatch):
    monkeypatch.setattr(train, 'find_spec', lambda name: True)
    cfg = dict(visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]))
    for _ in range(2):
        train.add_backends(cfg, ['tensorboard'])
    assert [item['type'] for item in cfg['visualizer']['vis_backends']] == [
        'LocalVisBackend', 'TensorboardVisBackend']


def test_the_doctor_knows_the_pinned_versions():
    pins = dict(line.split('==') for name in ('pins', 'pins_onedl')
                for line in (REPO / f'requirements/{name}.txt').read_text().splitlines()
                if '==' in line)
    packages = [*doctor.PACKAGES, *doctor.STACKS['openmmlab'], *doctor.STACKS['onedl']]
    assert {name: tested for name, tested, _ in packages} == {
        name: pins[name] for name, _, _ in packages}


@pytest.mark.parametrize('stack', doctor.STACKS)
def test_the_doctor_accepts_what_the_requirements_accept(stack):
    files = dict(openmmlab=('mminstall', 'openmmlab'), onedl=('mminstall_onedl', 'onedl'))[stack]
    lines = {line for name in files
             for line in (REPO / f'requirements/{name}.txt').read_text().splitlines()}
    for name, _, accepted in doctor.STACKS[stack]:
        assert f'{name}{accepted}' in lines


def test_the_doctor_names_two_stacks_over_each_other(monkeypatch):
    assert doctor.check_stack().level == 'ok'
    monkeypatch.setattr(doctor, 'installed', lambda name: '1.0')
    finding = doctor.check_stack()
    assert finding.level == 'problem'
    assert 'pip uninstall -y mmengine onedl-mmengine' in finding.fix


def test_the_doctor_finds_no_problem_here(capsys):
    with pytest.raises(SystemExit) as found:
        doctor.main(['--offline'])
    assert found.value.code == 0, capsys.readouterr().out


@pytest.mark.parametrize('installed, level, fix', [
    (None, 'problem', 'pip install'), ('2.3.0', 'problem', '2.1.0'), ('2.1.0', 'ok', ''),
    ('2.0.1', 'note', '')])
def test_the_doctor_judges_versions(installed, level, fix, monkeypatch):
    monkeypatch.setattr(doctor, 'chosen_stack', lambda: 'openmmlab')
    monkeypatch.setattr(doctor, 'installed', lambda name: installed if name == 'mmcv' else '1')
    finding = next(item for item in doctor.check_packages() if item.name == 'mmcv')
    assert finding.level == level and fix in finding.fix


def test_the_doctor_names_a_broken_operator(monkeypatch):
    monkeypatch.setattr(doctor, 'ask', lambda code: (None, "No module named 'mmcv._ext'"))
    finding = doctor.check_operators()
    assert finding.level == 'problem' and 'setup_env.py' in finding.fix
