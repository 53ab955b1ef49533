"""Mistakes of configs, data and arguments: each ends in one line that names it and the fix."""
import json
import shutil
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

import mmrla_cli
from mmrla.datasets import make_shapes
from support import CONFIGS

BASE = CONFIGS / 'shapes/faster_rcnn_rla_r18_fpn.py'
SECONDS = 10


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    """A data set without mistakes."""
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=4, val=2)


@pytest.fixture
def place(good, tmp_path, monkeypatch):
    """A folder with a copy of the data set and a config for it."""
    shutil.copytree(good, tmp_path / 'data/shapes')
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('MMRLA_SCREEN', 'summary')
    return tmp_path


def write(folder, *lines, name='mine.py'):
    small = 'model = dict(backbone=dict(base_channels=8), neck=dict(in_channels=[8, 16, 32, 64]))'
    workers = [f'{loader}_dataloader = dict(num_workers=0, persistent_workers=False)'
               for loader in ('train', 'val', 'test')]
    (folder / name).write_text('\n'.join([f'_base_ = {str(BASE)!r}', small, *workers, *lines]))


def edit(folder, change, split='train'):
    """Change the annotation file."""
    path = folder / f'data/shapes/annotations/instances_{split}2017.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def message_of(command, *words):
    """The last line that a command prints before it ends with an error."""
    start = time.process_time()
    with pytest.raises(SystemExit) as found:
        import_module(f'mmrla.commands.{command}').main([str(word) for word in words])
    assert time.process_time() - start < SECONDS
    return found.value.code


def check(message, *expected):
    assert isinstance(message, str), f'the command ended with code {message}, not with a line'
    assert len(message.splitlines()) == 1, message
    for words in expected:
        assert words in message, message


@pytest.mark.parametrize('option, expected', [
    ('model.backbone.deth=18', ['model.backbone.deth', 'did you mean depth?']),
    ('train_cfg.max_epoch=1', ['train_cfg.max_epoch', 'did you mean max_epochs?']),
    ('optimwrapper.optimizer.lr=1', ['no optimwrapper', 'did you mean optim_wrapper?']),
    ('param_scheduler.7.end=2', ['param_scheduler has 2 items']),
    ('param_scheduler.end=2', ['param_scheduler is a list']),
    ('train_dataloader.batchsize=2', ['no batchsize', 'did you mean batch_size?']),
    ('train_dataloader.dataset.ann_fle=a', ['ann_fle', 'did you mean ann_file?']),
    # These classes forward **kwargs to their parents.
    ('model.rpn_hed.num_convs=2', ['FasterRCNN', 'rpn_hed', 'did you mean rpn_head?']),
    ('model.rpn_head.feat_chanels=8', ['RPNHead', 'did you mean feat_channels?']),
    ('model.roi_head.bbox_head.num_clases=6', ['did you mean num_classes?']),
    ('train_dataloader.dataset.filter_cfgg.min_size=2', ['did you mean filter_cfg?']),
    ('optim_wrapper.optimizer.learning_rate=1', ['AdamW has no argument learning_rate', ', lr, ']),
    ('data_root.folder=a', ['data_root', 'has no folder']),
    ('model.backbone.depth=19', ['depth=19', '18, 34, 50']),
    ('model.backbone.rla.chanels=8', ['chanels']),
    ('model.backbone.rla.variant=v9', ['v9']),
    ('model.roi_head.bbox_head.num_classes=7', ['num_classes is 7', '6 classes',
                                                'num_classes=6']),
    ('optim_wrapper.optimizer.type=AdamWW', ['AdamWW', 'did you mean AdamW?']),
    ('optim_wrapper.optimizer.lr=fast', ["optim_wrapper.optimizer.lr is 'fast'", 'number']),
    ('train_dataloader.dataset.ann_file=annotations/instance_train2017.json',
     ['train_dataloader', 'does not exist', 'did you mean instances_train2017.json?']),
    ('train_dataloader.dataset.data_prefix.img=train2018', ['train2018', 'data_prefix.img']),
    ('val_evaluator.ann_file=missing.json', ['val_evaluator.ann_file', 'missing.json']),
    ('load_from=missing.pth', ['load_from', 'missing.pth does not exist'])])
def test_options(place, option, expected):
    check(message_of('train', 'mine.py', '--cfg-options', option), *expected)


@pytest.mark.parametrize('words, expected', [
    (['mine.py', '--amp'], ['--amp needs a GPU']),
    (['mine.py', '--auto-scale-lr', '--cfg-options', 'auto_scale_lr=None'], ['base_batch_size']),
    (['mine.py', '--pretrained', 'missing.pth'], ['missing.pth does not exist']),
    (['mine.py', '--resume', 'missing.pth'], ['missing.pth']),
    (['mine.py', '--work-dir', 'mine.py/x'], ['mine.py', '--work-dir']),
    (['mime.py'], ['mime.py does not exist', 'did you mean mine.py?'])])
def test_arguments_of_train(place, words, expected):
    check(message_of('train', *words), *expected)


@pytest.mark.parametrize('line, expected', [
    ('train_dataloder = dict(batch_size=2)', ['train_dataloder', 'did you mean train_dataloader?']),
    ("model = dict(backbone=dict(type='RLAResNett'))", ['RLAResNett', 'did you mean RLAResNet?']),
    ("custom_hooks = [dict(type='EMAHok')]", ['EMAHok', 'did you mean EMAHook?']),
    ("custom_hooks = [dict(type='EarlyStoppingHook', moniter='coco/bbox_mAP')]",
     ['moniter', 'did you mean monitor?']),
    ('train_dataloader = dict(num_worker=2)', ['train_dataloader', 'did you mean num_workers?']),
    ('model = dict(rpn_head=dict(feat_chanels=8))', ['RPNHead', 'did you mean feat_channels?']),
    ('model = dict(rpn_head=dict(loss_cls=dict(loss_weigt=2.0)))',
     ['CrossEntropyLoss has no argument loss_weigt', 'did you mean loss_weight?']),
    ('model = dict(', ['mine.py', 'was never closed']),
    ('x = undefined_name', ['undefined_name']),
    ("train_dataloader = dict(dataset=dict(metainfo=dict(classes=('disc', 'sqare', 'triangle', "
     "'star', 'cross', 'ring'))))", ["'sqare'", 'did you mean square?']),
    ("val_dataloader = dict(dataset=dict(metainfo=dict(classes=('cat', ))))",
     ["val_dataloader: class 'cat'", 'disc, square'])])
def test_configs(place, line, expected):
    write(place, line)
    check(message_of('train', 'mine.py'), *expected)


def test_a_missing_base_config(place):
    (place / 'mine.py').write_text("_base_ = 'bass.py'")
    check(message_of('train', 'mine.py'), 'bass.py')


def set_category(content):
    content['annotations'][0]['category_id'] = 99


def set_name(content):
    content['images'][0]['file_name'] = 'gone.png'


@pytest.mark.parametrize('change, expected', [
    (set_category, ['category_id 99', 'instances_train2017.json']),
    (set_name, ['gone.png does not exist', 'data_prefix.img']),
    (lambda content: content.pop('categories'), ['instances_train2017.json', 'categories']),
    (lambda content: content['images'].clear(), ['instances_train2017.json', 'images'])])
def test_annotations(place, change, expected):
    edit(place, change)
    check(message_of('train', 'mine.py'), *expected)


def test_annotations_that_are_no_json(place):
    (place / 'data/shapes/annotations/instances_train2017.json').write_text('not JSON')
    check(message_of('train', 'mine.py'), 'instances_train2017.json')


def test_a_damaged_image(place):
    for path in (place / 'data/shapes/train2017').iterdir():
        path.write_bytes(b'nothing')
    check(message_of('train', 'mine.py'), 'train2017', 'cannot be read')


def test_check_dataset_agrees_about_a_misspelt_class(place, capsys):
    write(place, "train_dataloader = dict(dataset=dict(metainfo=dict(classes=('disc', 'sqare', "
          "'triangle', 'star', 'cross', 'ring'))))")
    assert message_of('check_dataset', 'mine.py', '--workers', 0) == 1
    assert "'sqare'" in capsys.readouterr().out


@pytest.mark.parametrize('words, expected', [
    (['missing.pth', 'data'], ['missing.pth', 'does not exist']),
    (['mine.py', 'data'], ['mine.py']),
    (['data', 'data'], ['folder data has no checkpoint'])])
def test_checkpoints_of_predict(place, words, expected):
    check(message_of('predict', *words), *expected)


@pytest.mark.parametrize('text, expected', [
    ('import os', ['line 1 holds code', 'import os']),
    ("model = dict(type='FasterRCNN')\nx = __import__('os').system('touch ran')", ['line 2']),
    ("model = dict(type='os.system', command='touch ran')\n"
     "test_dataloader = dict(dataset=dict(pipeline=[]))", ['os.system', 'registered']),
    ("model = dict(type='FasterRCNN', test_cfg=dict(nms=dict(type=\"__import__('os')\")))\n"
     "test_dataloader = dict(dataset=dict(pipeline=[]))", ['__import__', 'refused']),
    ("model = dict(type='FasterRCNN')\ncustom_imports = dict(imports=['antigravity'])\n"
     "test_dataloader = dict(dataset=dict(pipeline=[]))", ['antigravity', '--config']),
    ('', ['carries no config', '--config']),
    ('model = dict(a=1)', ['test_dataloader', '--config'])])
def test_configs_in_checkpoints(place, text, expected):
    torch.save(dict(meta=dict(cfg=text), state_dict=dict(a=torch.zeros(1))), 'a.pth')
    check(message_of('predict', 'a.pth', 'data/shapes/val2017'), 'a.pth', *expected)
    assert not Path('ran').exists()


@pytest.mark.parametrize('name, expected', [
    ('gone.jpg', ['gone.jpg does not exist']), ('mine.py', ['neither an image nor a video']),
    ('data/shapes/annotations', ['has no images']), ('*.gif', ['no image matches *.gif']),
    ('broken.mp4', ['broken.mp4', 'cannot be opened'])])
def test_inputs_of_predict(place, name, expected):
    (place / 'broken.mp4').write_bytes(b'nothing')
    check(message_of('predict', 'a.pth', name), *expected)


def yolo(folder, names='names: [cat, dog]', label='0 0.5 0.5 0.2 0.2'):
    image = next((folder / 'data/shapes/train2017').iterdir())
    root = folder / 'yolo'
    root.mkdir()
    for number in range(2):
        shutil.copy(image, root / f'{number}.png')
        (root / f'{number}.txt').write_text(label)
    if names:
        (root / 'data.yaml').write_text(names)
    return root


@pytest.mark.parametrize('arguments, expected', [
    (dict(label='2 0.5 0.5 0.2 0.2'), ['0.txt, line 1', 'class 2 is unknown', '2 names']),
    (dict(label='0 50 50 20 20'), ['line 1', 'not normalised']),
    (dict(label='0 0.5 0.5'), ['line 1', '2 coordinates']),
    (dict(label='cat 0.5 0.5 0.1 0.1'), ['line 1', 'class number']),
    (dict(names=''), ['no class names', 'classes.txt']),
    (dict(names='names: cat'), ['data.yaml', 'list of class names'])])
def test_data_of_init(place, arguments, expected):
    check(message_of('init', yolo(place, **arguments)), *expected)


@pytest.mark.parametrize('folder, expected', [
    ('gone', ['gone does not exist']), ('data/shapes/train2017', ['no boxes', 'COCO'])])
def test_folders_of_init(place, folder, expected):
    check(message_of('init', folder), *expected)


@pytest.mark.parametrize('folder, expected', [
    ('gone', ['gone is not a folder', 'work dir']), ('data', ['data holds no log'])])
def test_runs_of_report(place, folder, expected):
    check(message_of('report', folder), *expected)


def test_a_misspelt_command():
    with pytest.raises(SystemExit) as found:
        mmrla_cli.main(['pedict'])
    check(found.value.code, 'pedict is not a command', 'did you mean predict?')


@pytest.mark.parametrize('command, words, expected', [
    ('predict', ['a.pth', 'b.jpg', '--score', 2], '--score 2.0 must be between 0 and 1'),
    ('predict', ['a.pth', 'b.jpg', '--batch-size', 0], '--batch-size 0 must be 1 or more'),
    ('train', ['mine.py', '--gpus', 'four'], 'four must be a number of 1 or more'),
    ('test', ['mine.py', 'a.pth', '--out', 'a.txt'], '--out a.txt must end in .pkl'),
    ('init', ['data', '--val-share', 3], '--val-share 3.0 must be between 0 and 1'),
    ('init', ['data', '-o', 'mine.py'], 'mine.py exists; overwrite it with --force')])
def test_arguments(place, capsys, command, words, expected):
    assert message_of(command, *words) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
