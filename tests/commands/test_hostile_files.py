"""Hostile and odd files through the commands that take one.

Each must end in one line, in bounded time and memory, and nothing may run or be written.
"""
import contextlib
import io
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import struct
import time
import zipfile

import pytest
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.runner import runner as mmengine_runner_module
from safetensors.torch import save

from mmrla.commands import (
    check_dataset,
    convert_weights,
    export,
    predict,
    report,
    test,
    train,
)
from mmrla.datasets import checks, make_shapes
from mmrla.datasets.processes import end_with_parent
from mmrla.engine import resume, work_dir
from mmrla.engine.signals import StopSignals
from support import CONFIGS
from support.malicious import Malicious

# A busy machine gets more time, but not for computing.
SECONDS, WAITING, BYTES = 10, 60, 2**30
EVIL = 'evil\x1b]0;title\x07\nname.png'


@contextlib.contextmanager
def bounded():
    """Fail after 10 seconds of computing, and for more than 1 GB of additional memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()

    def stop(number, frame):
        raise TimeoutError(f'still running after {SECONDS} seconds, or {WAITING} with waiting')

    numbers = signal.SIGALRM, signal.SIGPROF
    previous = [signal.signal(number, stop) for number in numbers]
    signal.alarm(WAITING)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def last_line(main, *arguments):
    """The line with which a command ends."""
    with bounded(), pytest.raises(SystemExit) as found:
        main([*map(str, arguments)])
    assert found.value.code not in (None, 0)
    assert isinstance(found.value.code, str) and '\n' not in found.value.code, found.value.code
    assert found.value.code.isprintable()
    return found.value.code


def zip_bomb(path, trace):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('archive/data.pkl', pickle.dumps({}, 2))
        with archive.open('archive/data/0', 'w') as entry:
            for _ in range(10):
                entry.write(bytes(2**24))  # 160 MB in 160 KB


def overlapping(path, trace):
    """Many entries of the directory share the bytes of one."""
    buffer = io.BytesIO()
    torch.save(dict(weight=torch.ones(1000)), buffer)
    with zipfile.ZipFile(buffer, 'a') as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        archive.filelist += [largest] * 100
        archive._didModify = True
    path.write_bytes(buffer.getvalue())


def endless_tensor(path, trace):
    """One value, repeated by a stride of 0."""
    torch.save(dict(state_dict={'conv1.weight': torch.ones(1).expand(2**35)}), path)


def large_legacy(path, trace):
    """Torch's old format, whose pickle announces a storage of 30 GB."""
    buffer = io.BytesIO()
    torch.save(dict(weight=torch.ones(7)), buffer, _use_new_zipfile_serialization=False)
    content = buffer.getvalue()
    assert content.count(b'K\x07') >= 2
    content = content.replace(b'K\x07', b'\x8a\x05' + (30 * 2**28).to_bytes(5, 'little'))
    path.write_bytes(content)


def long_text(path, trace):
    """A pickle whose text has 4 GB, it says."""
    path.write_bytes(b'\x80\x02X' + struct.pack('<I', 2**32 - 1) + b'abc')


def code(path, trace):
    torch.save(dict(state_dict={}, message_hub=Malicious(trace)), path)


def safetensors(metadata):
    def write(path, trace):
        path.write_bytes(save({'conv1.weight': torch.ones(1)}, metadata=dict(mmrla=metadata)))
    return write


def raw_safetensors(path, trace):
    header = json.dumps({'__metadata__': {'mmrla': 5}, 'a': dict(
        dtype='F32', shape=[1], data_offsets=[0, 4])}).encode()
    path.write_bytes(len(header).to_bytes(8, 'little') + header + bytes(4))


CHECKPOINTS = {
    'zip bomb': (zip_bomb, 'compressed archive'),
    'overlapping entries': (overlapping, 'refused'),
    'endless tensor': (endless_tensor, '34,359,738,368 values'),
    'large legacy storage': (large_legacy, 'cannot be read'),
    'long text': (long_text, 'cannot be read'),
    'code': (code, 'could run code'),
    'meta of another type': (lambda path, trace: torch.save(
        dict(state_dict={'a': torch.ones(1)}, meta=[1]), path), 'meta is a list'),
    'safetensors, modules': (safetensors('{"modules": 5}'), 'metadata'),
    'safetensors, module': (safetensors('{"modules": {"backbone": [1]}}'), 'metadata'),
    'safetensors, list': (safetensors('[]'), 'cannot be read'),
    'safetensors, nested': (safetensors('[' * 10**5), 'cannot be read'),
    'safetensors, header': (raw_safetensors, 'cannot be read'),
    'pipe': (lambda path, trace: os.mkfifo(path), 'is not a file'),
    'device': (lambda path, trace: path.symlink_to('/dev/zero'), 'is not a file'),
}


@pytest.fixture(scope='module', autouse=True)
def _imported():
    register_all_modules()  # importing mmdet would count as time of the first command


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=4, val=2)


@pytest.fixture
def config(data, tmp_path, monkeypatch):
    """A small detector on the shapes; its path."""
    monkeypatch.setattr(mmengine_runner_module, 'collect_env', dict)
    monkeypatch.setattr(Config, 'pretty_text', property(
        lambda cfg: repr(cfg._cfg_dict.to_dict())))
    path = tmp_path / 'config.py'
    path.write_text(f'_base_ = {str(CONFIGS / "shapes/faster_rcnn_rla_r18_fpn.py")!r}\n'
                    + ''.join(f'{name}_dataloader = dict(num_workers=0, persistent_workers=False, '
                              f'dataset=dict(data_root={str(data) + "/"!r}))\n'
                              for name in ('train', 'val', 'test'))
                    + f'val_evaluator = dict(ann_file={str(data)!r} + '
                    '"/annotations/instances_val2017.json")\ntest_evaluator = val_evaluator\n'
                    'model = dict(backbone=dict(base_channels=8), neck=dict(in_channels='
                    '[8, 16, 32, 64]), roi_head=dict(bbox_head=dict(fc_out_channels=32)))\n')
    return path


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_a_hostile_checkpoint_ends_the_commands_in_one_line(name, tmp_path):
    write, words = CHECKPOINTS[name]
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'it-ran'
    write(path, trace)
    image = tmp_path / 'image.png'
    image.write_bytes(b'')
    before = set(tmp_path.iterdir())
    for line in (last_line(convert_weights.main, path, tmp_path / 'out.pth'),
                 last_line(predict.main, path, image, '-o', tmp_path / 'found'),
                 last_line(export.main, path, '-o', tmp_path / 'out.onnx')):
        assert str(path) in line and words in line
    assert set(tmp_path.iterdir()) == before, 'something ran, or was written'


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_a_hostile_checkpoint_ends_training_and_testing_in_one_line(name, tmp_path, config):
    write, _ = CHECKPOINTS[name]
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'it-ran'
    write(path, trace)
    work = ['--work-dir', tmp_path / 'work']
    for line in (last_line(train.main, config, '--pretrained', path, *work),
                 last_line(train.main, config, '--resume', path, *work),
                 last_line(test.main, config, path, *work)):
        assert str(path) in line
    assert not trace.exists()


def run_of(folder, data, file_name=None):
    """The work dir of a run on the validation images; one of them may have another name."""
    annotations = data / 'annotations/instances_val2017.json'
    if file_name is not None:
        content = json.loads(annotations.read_text())
        content['images'][0]['file_name'] = file_name
        annotations.write_text(json.dumps(content))
    vis = folder / '20260101_000000/vis_data'
    vis.mkdir(parents=True)
    (vis / 'scalars.json').write_text('{"loss": 1.0, "step": 1, "iter": 1, "epoch": 1}\n')
    (vis / 'config.py').write_text(
        "model = dict(type='FasterRCNN', backbone=dict(type='RLAResNet', depth=18))\n"
        f"val_dataloader = dict(dataset=dict(ann_file={str(annotations)!r}, data_root='', "
        f"data_prefix=dict(img={str(data / 'val2017')!r})))\n")
    return folder


@pytest.mark.parametrize('name', [name for name in CHECKPOINTS if name not in ('pipe', 'device')])
def test_a_hostile_checkpoint_ends_a_report_in_one_line(name, tmp_path, data):
    write, words = CHECKPOINTS[name]
    path, trace = run_of(tmp_path / 'run', data) / 'epoch_1.pth', tmp_path / 'it-ran'
    write(path, trace)
    line = last_line(report.main, tmp_path / 'run', '-o', tmp_path / 'report.html')
    assert str(path) in line and words in line
    assert not trace.exists() and not (tmp_path / 'report.html').exists()


@pytest.mark.parametrize('main', [predict.main, export.main], ids=['predict', 'export'])
@pytest.mark.parametrize('place', ['config', 'cfg'])
def test_the_code_of_a_config_in_a_checkpoint_is_data(tmp_path, main, place):
    """With weights alone, mmdet's DetInferencer would run it."""
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'it-ran'
    code = f'import os; os.system("touch {trace}")'
    meta = {place: code, 'dataset_meta': 5}
    torch.save(dict(state_dict={'a': torch.ones(1)}, meta=meta), path)
    (tmp_path / 'image.png').write_bytes(b'')
    words = [tmp_path / 'image.png'] if main is predict.main else []
    assert str(path) in last_line(main, path, *words)
    assert not trace.exists()


@pytest.mark.parametrize('place', ['config', 'cfg'])
def test_training_and_testing_do_not_run_the_config_in_a_checkpoint(tmp_path, config, place):
    path, trace = tmp_path / 'hostile.pth', tmp_path / 'it-ran'
    meta = {place: f'import os; os.system("touch {trace}")', 'epoch': 1, 'iter': 1}
    torch.save(dict(state_dict={'a': torch.ones(1)}, meta=meta, message_hub={}), path)
    work = ['--work-dir', tmp_path / 'work']
    for main, words in ((train.main, ['--resume', path]), (train.main, ['--pretrained', path]),
                        (test.main, [path])):
        assert str(path) in last_line(main, config, *words, *work)
    assert not trace.exists()


# Data

def pipe(folder):
    os.mkfifo(folder / 'pipe.png')
    return 'pipe.png'


def device(folder):
    (folder / 'device.png').symlink_to('/dev/zero')
    return 'device.png'


def sparse(folder):
    with open(folder / 'sparse.png', 'wb') as file:
        file.truncate(30 * 2**30)
    return 'sparse.png'


def outside(folder):
    (folder.parent / 'outside.png').write_bytes(b'')
    return '../outside.png'


IMAGES = {
    'pipe': (pipe, 'unreadable image', 'is not a file'),
    'device': (device, 'unreadable image', 'is not a file'),
    'device itself': (lambda folder: '/dev/zero', 'image outside its folder', '/dev/zero'),
    'sparse': (sparse, 'unreadable image', '30720 MB'),
    'outside': (outside, 'image outside its folder', '../outside.png'),
    'control characters': (lambda folder: EVIL, 'missing image', r'evil\x1b]0;title\x07\nname'),
    'long name': (lambda folder: 5000 * 'a', 'unreadable image', 'File name too long'),
}


@pytest.fixture
def hostile(data, tmp_path):
    """A function that puts a file name into a copy of the data; the annotations."""
    copied = shutil.copytree(data, tmp_path / 'shapes')
    path = copied / 'annotations/instances_train2017.json'
    content = json.loads(path.read_text())

    def change(make_name):
        for image in content['images'][1:]:
            image['file_name'] = make_name(copied / 'train2017')
            break
        path.write_text(json.dumps(content))
        return path

    return change


@pytest.mark.parametrize('name', IMAGES)
def test_a_hostile_image_is_reported_and_not_opened(name, hostile, capsys):
    make_name, kind, words = IMAGES[name]
    path = hostile(make_name)
    with bounded(), pytest.raises(SystemExit) as found:
        check_dataset.main(['--coco', str(path), str(path.parents[1] / 'train2017'),
                            '--workers', '0'])
    output = capsys.readouterr().out
    assert found.value.code == 1
    assert f'1 x {kind}' in output and words in output
    assert all(line.isprintable() for line in output.splitlines())


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_annotations_that_are_no_file_are_named(kind, tmp_path, capsys):
    path = tmp_path / 'annotations.json'
    os.mkfifo(path) if kind == 'pipe' else path.symlink_to('/dev/zero')
    with bounded(), pytest.raises(SystemExit) as found:
        check_dataset.main(['--coco', str(path), str(tmp_path), '--workers', '0'])
    assert found.value.code == 2
    assert capsys.readouterr().err == f'annotations {path} are not a file\n'


@pytest.mark.parametrize('name', [name for name in IMAGES if name != 'outside'])
def test_training_on_a_hostile_image_ends_in_one_line(name, hostile, config, tmp_path):
    make_name, _, words = IMAGES[name]
    root = hostile(make_name).parents[1]
    line = last_line(
        train.main, config, '--work-dir', tmp_path / 'work', '--from-scratch', '--cfg-options',
        f'train_dataloader.dataset.data_root={root}/')
    assert 'image' in line and words in line


def test_a_report_on_a_pipe_ends_in_one_line(data, tmp_path):
    copied = shutil.copytree(data, tmp_path / 'shapes')
    run = run_of(tmp_path / 'run', copied, pipe(copied / 'val2017'))
    (run / 'predictions').mkdir()
    (run / 'predictions/predictions.json').write_text('[]')
    line = last_line(report.main, run, '-o', tmp_path / 'report.html')
    assert f'image {copied}/val2017/pipe.png is not a file' in line


def test_predicting_on_a_pipe_ends_in_one_line(tmp_path):
    (tmp_path / 'folder').mkdir()
    pipe(tmp_path / 'folder')
    for item in ('folder', 'folder/pipe.png'):
        line = last_line(predict.main, tmp_path / 'any.pth', tmp_path / item)
        assert str(tmp_path / item) in line


@pytest.mark.parametrize('counts, is_valid', [
    ('<script>', False), ('', False), ('~~~~', False), (5000 * 'o', False), (5000 * '0', False)])
def test_a_mask_of_garbage_is_found(counts, is_valid):
    mask = dict(size=[4, 5], counts=counts)
    assert (checks._run_length_problem(mask, {}) is None) == is_valid


def test_the_masks_of_pycocotools_are_valid():
    mask_utils = pytest.importorskip('pycocotools.mask')
    generator = torch.Generator().manual_seed(0)
    for density in (0.0, 0.01, 0.5, 1.0):
        mask = (torch.rand(300, 70, generator=generator) < density).to(torch.uint8).numpy()
        encoded = mask_utils.encode(mask.copy(order='F'))
        encoded['counts'] = encoded['counts'].decode()
        assert checks._run_length_problem(encoded, {}) is None
        assert checks._run_length_problem({**encoded, 'size': [300, 71]}, {}) is not None


# Work dirs

POINTERS = {'URL': 'https://example.org/epoch_1.pth', 'long': 5000 * 'a', 'path': 'a/' * 2000,
            'backend': 'nothing://epoch_1.pth', 'control': 'epoch\x1b_1.pth'}


@pytest.mark.parametrize('name', POINTERS)
def test_a_pointer_to_anything_is_ignored(name, tmp_path):
    (tmp_path / 'last_checkpoint').write_text(POINTERS[name])
    said = []
    with bounded():
        assert resume.find_newest(str(tmp_path), said.append) is None
    assert said == [f'no checkpoint to resume from in {tmp_path}; starting from the beginning']
    (tmp_path / 'image.png').write_bytes(b'')
    assert 'has no checkpoint' in last_line(predict.main, tmp_path, tmp_path / 'image.png')


def test_files_of_a_run_that_are_pipes_are_ignored(tmp_path):
    for name in ('last_checkpoint', 'run.json', 'epoch_1.pth', 'best_mAP.pth'):
        os.mkfifo(tmp_path / name)
    with bounded():
        assert resume.find_newest(str(tmp_path), lambda line: None) is None
        assert work_dir.read_run(tmp_path) is None
    (tmp_path / '20260101_000000/vis_data').mkdir(parents=True)
    os.mkfifo(tmp_path / '20260101_000000/vis_data/scalars.json')
    assert 'holds no log of a training' in last_line(report.main, tmp_path)


def test_a_report_on_odd_logs_ends_in_one_line(tmp_path):
    folder = tmp_path / '20260101_000000/vis_data'
    folder.mkdir(parents=True)
    (folder / 'scalars.json').write_text('[1, 2]\n"text"\n' + '[' * 10**5)
    trace = tmp_path / 'it-ran'
    (folder / 'config.py').write_text(f'import os\nos.system("touch {trace}")\n')
    last_line(report.main, tmp_path, '-o', tmp_path / 'report.html')
    assert not trace.exists() and not (tmp_path / 'report.html').exists()


# Processes

class Large(torch.utils.data.Dataset):
    """Samples that fill the pipes of the workers."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return bytes(2**20)


def test_workers_end_with_a_killed_parent(tmp_path):
    parent = os.fork()
    if not parent:
        loader = torch.utils.data.DataLoader(Large(), num_workers=2, collate_fn=list)
        StopSignals().shield_workers(loader)
        iterator = iter(loader)
        next(iterator)
        (tmp_path / 'part').write_text(' '.join(str(w.pid) for w in iterator._workers))
        os.rename(tmp_path / 'part', tmp_path / 'workers')
        time.sleep(60)
        os._exit(0)
    wait_until((tmp_path / 'workers').exists)
    workers = [int(word) for word in (tmp_path / 'workers').read_text().split()]
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        wait_until(lambda: not any(map(is_running, workers)))
    finally:
        for worker in filter(is_running, workers):
            os.kill(worker, signal.SIGKILL)


def test_a_worker_that_starts_after_its_parent_died_ends(tmp_path):
    ready, survived = tmp_path / 'ready', tmp_path / 'survived'

    def work(parent):
        ready.write_text(str(os.getpid()))
        while os.getppid() == parent:
            time.sleep(0.01)
        end_with_parent()
        survived.touch()

    parent = os.fork()
    if not parent:
        multiprocessing.get_context('fork').Process(target=work, args=(os.getpid(),)).start()
        time.sleep(60)
        os._exit(0)
    wait_until(lambda: ready.exists() and ready.read_text())
    worker = int(ready.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: not is_running(worker))
    assert not survived.exists()


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, 'waited too long'
        time.sleep(0.05)


def is_running(process):
    try:
        state = open(f'/proc/{process}/stat').read().rpartition(')')[2].split()[0]
    except OSError:
        return False
    return state != 'Z'
