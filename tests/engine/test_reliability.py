"""Runs that are killed, resumed, starved or fed with nonsense."""
import errno
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS

from mmrla.commands import convert_weights
from mmrla.datasets import make_shapes
from mmrla.engine import resume
from mmrla.engine import work_dir as work_dir_module
from mmrla.engine.errors import RunError
from mmrla.models import RLAResNet
from mmrla.weights import load_weights, writing
from mmrla.weights.background import WRITER
from mmrla.weights.errors import CheckpointError
from support import load_tool
from support.networks import randomise

chaos = load_tool('dev/chaos')
EPOCH = 4  # steps: 8 images, 2 a step
# The backbone of chaos.small_config.
STAGES = dict(num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(0, 1))


pytestmark = pytest.mark.usefixtures('fast_children')


def run(data, work_dir, act=lambda step: None, world=1, **options):
    """Train in children, one a process; their exit status and what they said."""
    options = dict(default_hooks__checkpoint=dict(
        _delete_=True, type='SafeCheckpointHook', interval=1), train_cfg__max_epochs=3,
        resume=True, log_level='INFO') | options
    if 'train_cfg' in options:
        del options['train_cfg__max_epochs']
    log = Path(f'{work_dir}.log')
    log.unlink(missing_ok=True)
    port = chaos.free_port()

    def work(rank):
        os.setpgrp()  # a signal to the group of the run is not one to the tests
        cfg = chaos.small_config(data, work_dir, **options)
        chaos.join_group(cfg, rank, world, port)
        chaos.train(cfg, chaos.Progress(), act)

    children = [chaos.fork(lambda rank=rank: work(rank), log) for rank in range(world)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return [os.waitstatus_to_exitcode(status) for status in statuses], log.read_text()


def kill_at(*steps):
    """Kill the process after one of these steps, the first that comes, and after its save."""

    def act(step):
        if step in steps:
            WRITER.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def weights(work_dir, name):
    return torch.load(Path(work_dir) / name, weights_only=True)


def assert_same(one, other):
    """Bit by bit, in weights, optimizer and schedules."""
    for part in ('state_dict', 'ema_state_dict'):
        for key, value in one.get(part, {}).items():
            assert torch.equal(value, other[part][key]), f'{key} differs'
    for index, state in one['optimizer']['state'].items():
        for key, value in state.items():
            assert torch.equal(value, other['optimizer']['state'][index][key])
    buffers = (run['continuation'].get('buffers', []) for run in (one, other))
    for mine, theirs in zip(*buffers, strict=True):  # of every process
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    assert one['param_schedulers'] == other['param_schedulers']
    assert one['meta']['iter'] == other['meta']['iter']


def mid_epoch(interval=1):
    return dict(_delete_=True, type='SafeCheckpointHook', by_epoch=False, interval=interval,
                max_keep_ckpts=2)


WORKERS = dict(train_dataloader__num_workers=2, train_dataloader__persistent_workers=True)
BY_ITERATION = dict(
    train_cfg=dict(_delete_=True, type='IterBasedTrainLoop', max_iters=3 * EPOCH),
    train_dataloader__sampler=dict(_delete_=True, type='InfiniteSampler'))
WHERE = {
    # name: processes, whether within epochs, options, options of the killed run alone
    'epochs': (1, False, {}, WORKERS),
    'epochs, 2 processes': (2, False, {}, {}),
    'mid-epoch, averaged weights': (1, True, dict(custom_hooks=[dict(type='EMAHook')]), {}),
    'mid-epoch, 2 processes': (2, True, {}, {}),
    'by iterations': (1, True, BY_ITERATION, {}),
    'by iterations, persistent workers': (1, True, BY_ITERATION, WORKERS),
}


@pytest.mark.parametrize('name', WHERE)
def test_a_run_killed_five_times_ends_bit_identical(data, tmp_path, name):
    world, within, common, alone = WHERE[name]
    if within:
        hook, last = mid_epoch(), f'iter_{3 * EPOCH}.pth'
        kills, epochs = [1, 3, 4, 7, 10], 3 * world
    else:
        hook, last = dict(_delete_=True, type='SafeCheckpointHook', interval=1), 'epoch_6.pth'
        kills, epochs = [EPOCH // world * epoch + 1 for epoch in range(1, 6)], 6
    options = dict(world=world, default_hooks__checkpoint=hook, **common)
    if 'train_cfg' not in common:
        options['train_cfg__max_epochs'] = epochs
    codes, output = run(data, tmp_path / 'straight', **options)
    assert codes == [0] * world, output[-3000:]
    for step in kills:
        codes, output = run(data, tmp_path / 'killed', act=kill_at(step), **options, **alone)
        assert set(codes) != {0} and -signal.SIGKILL in codes, output[-3000:]
    codes, output = run(data, tmp_path / 'killed', **options, **alone)
    assert codes == [0] * world, output[-3000:]
    assert_same(*(weights(tmp_path / run, last) for run in ('straight', 'killed')))


def test_more_than_two_processes_continue_with_the_same_buckets(data, tmp_path):
    """With more than two, the buckets of DDP decide how sums are rounded."""
    options = dict(world=3, default_hooks__checkpoint=mid_epoch(), train_cfg__max_epochs=1,
                   train_dataloader__batch_size=1)
    for name, kill in (('straight', ()), ('killed', (1,)), ('killed', ())):
        codes, output = run(data, tmp_path / name, act=kill_at(*kill), **options)
        assert codes == [-signal.SIGKILL if kill else 0] * 3, output[-3000:]
    assert_same(*(weights(tmp_path / run, 'iter_3.pth') for run in ('straight', 'killed')))


def test_without_its_random_states_a_run_ends_elsewhere(data, tmp_path):
    """That the comparison above can fail."""
    options = dict(default_hooks__checkpoint=mid_epoch(), train_cfg__max_epochs=1)
    run(data, tmp_path / 'straight', **options)
    run(data, tmp_path / 'killed', act=kill_at(2), **options)
    checkpoint = weights(tmp_path / 'killed', 'iter_2.pth')
    checkpoint['continuation']['random_states'] = []
    torch.save(checkpoint, tmp_path / 'killed/iter_2.pth')
    codes, output = run(data, tmp_path / 'killed', **options)
    assert codes == [0], output[-3000:]
    with pytest.raises(AssertionError, match='differs'):
        assert_same(*(weights(tmp_path / run, 'iter_4.pth') for run in ('straight', 'killed')))


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_leaves_and_the_run_goes_on(data, tmp_path, number):
    codes, output = run(data, tmp_path / 'run', train_cfg__max_epochs=2, act=lambda step: (
        os.kill(os.getpid(), number) if step == 5 else None))
    assert codes == [128 + number], output[-3000:]
    assert f'stopped by {signal.Signals(number).name}' in output
    assert (tmp_path / 'run/iter_6.pth').exists(), 'the step after the signal was not saved'
    codes, output = run(data, tmp_path / 'run', train_cfg__max_epochs=2)
    assert codes == [0], output[-3000:]
    assert 'continuing after batch 2 of 4' in output
    assert not (tmp_path / 'run/iter_6.pth').exists(), 'a later checkpoint replaces it'
    assert weights(tmp_path / 'run', 'epoch_2.pth')['meta']['iter'] == 2 * EPOCH


@pytest.mark.parametrize('options', [{}, BY_ITERATION], ids=['epochs', 'iterations'])
def test_a_signal_to_all_processes_leaves_the_workers_until_the_run_is_saved(
        data, tmp_path, options):
    """A cluster sends SIGTERM to the whole group; an endless iterator starts its workers early."""
    def send_to_group(step):
        # from another process: a worker ends without an error if its parent sends the signal
        if step == 2:
            subprocess.run(['kill', '-TERM', '--', f'-{os.getpgrp()}'])

    codes, output = run(data, tmp_path / 'run', **options, **WORKERS, act=send_to_group)
    assert codes == [128 + signal.SIGTERM], output[-3000:]
    assert 'stopped by SIGTERM; saved' in output
    assert (tmp_path / 'run/iter_3.pth').exists(), 'the step after the signal was not saved'


def test_a_run_saves_and_ends_if_torchrun_is_killed(data, tmp_path, monkeypatch):
    """Else it would train on and keep the work dir locked, and a restarted run would be refused."""
    monkeypatch.setenv('TORCHELASTIC_RUN_ID', 'test')
    log = tmp_path / 'run.log'

    def launch():
        run(data, tmp_path / 'run', train_cfg__max_epochs=100, act=lambda step: (
            os.kill(os.getppid(), signal.SIGKILL) if step == 2 else None))

    launcher = chaos.fork(launch, tmp_path / 'launcher.log')
    assert os.waitpid(launcher, 0)[1] == signal.SIGKILL, (tmp_path / 'launcher.log').read_text()
    end = chaos.Patience(60)
    while not is_free(tmp_path / 'run'):
        assert not end.is_over(), log.read_text()[-2000:]
        time.sleep(0.05)
    assert 'stopped by SIGTERM; saved' in log.read_text()


def is_free(work_dir):
    """Whether no run uses a work dir."""
    try:
        work_dir_module.lock(work_dir).close()
    except RunError:
        return False
    return True


@pytest.fixture(scope='module')
def finished(data, tmp_path_factory):
    """A run of two epochs."""
    folder = tmp_path_factory.mktemp('finished') / 'run'
    codes, output = run(data, folder, train_cfg__max_epochs=2)
    assert codes == [0], output[-3000:]
    return folder


def copy(finished, target):
    import shutil
    shutil.copytree(finished, target)
    return target


def found(work_dir):
    said = []
    path = resume.find_newest(str(work_dir), said.append)
    return path and Path(path).name, '\n'.join(said)


def test_resume_takes_the_newest_that_can_be_read(finished, tmp_path):
    work_dir = copy(finished, tmp_path / 'run')
    assert found(work_dir)[0] == 'epoch_2.pth'
    newest = work_dir / 'epoch_2.pth'
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # torch.load does not notice
    newest.write_bytes(content)
    name, said = found(work_dir)
    assert name == 'epoch_1.pth'
    assert 'skipped' in said and 'epoch_2.pth is damaged' in said
    newest.write_bytes(content[:5000])
    name, said = found(work_dir)
    assert name == 'epoch_1.pth' and 'skipped' in said
    (work_dir / 'epoch_1.pth').write_bytes(b'')
    name, said = found(work_dir)
    assert name is None and 'starting from the beginning' in said


def test_an_empty_work_dir_starts_from_the_beginning_and_says_so(tmp_path):
    name, said = found(tmp_path)
    assert name is None
    assert said == f'no checkpoint to resume from in {tmp_path}; starting from the beginning'


def test_weights_alone_are_nothing_to_go_on_from(finished, tmp_path):
    path = str(tmp_path / 'weights.pth')
    torch.save(torch.load(finished / 'epoch_2.pth')['state_dict'], path)
    with pytest.raises(CheckpointError, match='weights.pth holds weights only'):
        resume.check_resumable(path)
    resume.check_resumable(str(finished / 'epoch_2.pth'))


def test_a_moved_work_dir_resumes_from_its_own_files(finished, tmp_path):
    work_dir = copy(finished, tmp_path / 'moved')
    assert str(finished) in (work_dir / 'last_checkpoint').read_text()
    path = resume.find_newest(str(work_dir), lambda line: None)
    assert Path(path).parent == work_dir


@pytest.mark.parametrize('content', [b'', b'/nowhere/epoch_9.pth', b'\xff\xfe\x00', b'epoch_1.pth'])
def test_any_pointer_is_survived(finished, tmp_path, content):
    work_dir = copy(finished, tmp_path / 'run')
    (work_dir / 'last_checkpoint').write_bytes(content)
    assert found(work_dir)[0] == 'epoch_2.pth'


def test_an_earlier_runs_checkpoints_are_not_taken_for_this_ones(finished, tmp_path):
    work_dir = copy(finished, tmp_path / 'run')
    work_dir_module.claim(work_dir, None)  # a new run begins
    name, said = found(work_dir)
    assert name is None and 'earlier run' in said and '--resume' in said


def test_another_number_of_processes_says_what_changes(data, finished, tmp_path):
    work_dir = copy(finished, tmp_path / 'run')
    codes, output = run(data, work_dir, world=2, train_cfg__max_epochs=3)
    assert codes == [0, 0], output[-3000:]
    assert '1 process(es) before, 2 now; 2 images per step before, 4 now' in output
    assert weights(work_dir, 'epoch_3.pth')['meta']['iter'] == 3 * EPOCH // 2


def test_old_checkpoints_go_only_when_the_new_one_is_there(data, tmp_path, monkeypatch):
    hook = mid_epoch() | dict(max_keep_ckpts=1)
    order = []
    write, unlink = os.replace, os.remove
    monkeypatch.setattr(os, 'replace', lambda a, b: (order.append(('new', Path(b).name)),
                                                      write(a, b))[1])
    monkeypatch.setattr(os, 'remove', lambda path: (order.append(('old', Path(path).name)),
                                                    unlink(path))[1])
    codes, output = run(data, tmp_path / 'run', default_hooks__checkpoint=hook,
                        train_cfg__max_epochs=1, act=lambda step: print('ORDER', order))
    assert codes == [0], output[-3000:]
    last = [line for line in output.splitlines() if line.startswith('ORDER')][-1]
    events = [event for event in eval(last.removeprefix('ORDER')) if '.pth' in event[1]]
    assert events.index(('new', 'iter_2.pth')) < events.index(('old', 'iter_1.pth'))
    assert [path.name for path in (tmp_path / 'run').glob('*.pth')] == ['iter_4.pth']


def test_the_best_checkpoint_is_replaced_after_its_successor(tmp_path):
    from mmrla.engine.hooks import SafeCheckpointHook
    events = []

    class Runner:
        epoch = iter = 3

        message_hub = SimpleNamespace(runtime_info={'best_score': 0.1},
                                      update_info=lambda *args: None, get_info=lambda name: 0.1)
        logger = SimpleNamespace(info=lambda text: None)

        def save_checkpoint(self, *args, filename, **kwargs):
            events.append(f'saved {filename}')

    hook = SafeCheckpointHook(save_best='mAP')
    hook.out_dir, hook.best_ckpt_path = str(tmp_path), str(tmp_path / 'best_old.pth')

    class Backend:
        join_path = staticmethod(os.path.join)
        isfile = staticmethod(lambda path: True)
        remove = staticmethod(lambda path: events.append(f'removed {Path(path).name}'))

    hook.file_backend = Backend
    hook._save_best_checkpoint(Runner(), dict(mAP=0.5))
    WRITER.wait()
    assert events == ['saved best_mAP_epoch_3.pth', 'removed best_old.pth']
    hook._save_best_checkpoint(Runner(), dict(mAP=0.05))  # no better
    assert len(events) == 2 and hook.best_ckpt_path.endswith('best_mAP_epoch_3.pth')


def test_a_loss_that_is_no_number_stops_before_it_is_saved(data, tmp_path):
    options = dict(default_hooks__checkpoint=mid_epoch(2), train_cfg__max_epochs=2)
    codes, output = run(data, tmp_path / 'run', optim_wrapper__optimizer__lr=1e30,
                        optim_wrapper__clip_grad=None, **options)
    assert codes == [1]
    assert 'not finite' in output and 'optim_wrapper.optimizer.lr' in output
    for path in (tmp_path / 'run').glob('*.pth'):
        for name, value in weights(path.parent, path.name)['state_dict'].items():
            assert torch.isfinite(value.float()).all(), f'{name} of {path} was saved'


def test_a_disk_that_is_full_in_the_background_ends_the_run_in_one_line(data, tmp_path):
    def fill_disk(step):
        def write(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        WRITER.wait()  # the checkpoint of this step is complete
        writing.write_file = write

    codes, output = run(data, tmp_path / 'run', act=fill_disk, train_cfg__max_epochs=1,
                        default_hooks__checkpoint=mid_epoch(2))
    assert codes == [1]
    last = output.strip().splitlines()[-1]
    assert 'iter_2.pth cannot be written (No space left on device): free some space' in last
    assert not list((tmp_path / 'run').glob('*.pth'))
    assert not (tmp_path / 'run/last_checkpoint').exists()


def test_a_second_run_in_a_work_dir_is_refused(tmp_path):
    (tmp_path / '.epoch_1.pth.1.part').write_bytes(b'of the first run')

    def second():
        try:
            work_dir_module.lock(tmp_path)
        except RunError as error:
            print(error)
            return
        print('it has the lock')

    def said():
        os.waitpid(chaos.fork(second, tmp_path / 'log'), 0)
        return (tmp_path / 'log').read_text().splitlines()[-1]

    file = work_dir_module.lock(tmp_path)
    assert f'{tmp_path} is used by another run (process {os.getpid()}' in said()
    work_dir_module.lock(tmp_path).close()  # this process may, and ends its lock
    file.close()
    assert said() == 'it has the lock'
    assert said() == 'it has the lock', 'a process that has ended still has it'


def test_a_second_run_is_refused_before_it_reads_a_checkpoint(data, finished, tmp_path):
    """The first run may remove the checkpoint that the second one has chosen."""
    work_dir = copy(finished, tmp_path / 'run')
    file = work_dir_module.lock(work_dir)
    codes, output = run(data, work_dir)
    file.close()
    assert codes == [1]
    assert f'{work_dir} is used by another run' in output.splitlines()[-1]
    assert 'resuming from' not in output


@pytest.mark.skipif(os.geteuid() != 0, reason='mounts a file system')
def test_a_full_dev_shm_ends_the_run_instead_of_stopping_it_for_ever(tmp_path):
    data = make_shapes(tmp_path / 'shapes', train=16, val=4)
    result = chaos.try_scenario('a full /dev/shm', 1, seed=0, folder=tmp_path, data=data)
    assert chaos.is_good(result), result


def test_a_dead_process_ends_the_others_soon(data, tmp_path):
    start = time.monotonic()
    codes, output = run(data, tmp_path / 'run', world=2, act=lambda step: (
        os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and os.environ['RANK'] == '1' else None))
    assert codes[1] == -signal.SIGKILL and codes[0] not in (0, -signal.SIGKILL), output[-2000:]
    assert time.monotonic() - start < 60


def test_a_damaged_image_stops_the_run_with_its_name_or_is_skipped(data, tmp_path):
    import shutil
    mine = tmp_path / 'shapes'
    shutil.copytree(data, mine)
    image = sorted((mine / 'train2017').iterdir())[3]
    image.write_bytes(b'no image')
    codes, output = run(mine, tmp_path / 'run', train_cfg__max_epochs=1)
    assert codes == [1]
    assert f'image {image} cannot be used' in output
    skip = dict(type='LoadNamedImage', skip_damaged=True)
    codes, output = run(mine, tmp_path / 'run', train_cfg__max_epochs=1,
                        train_dataloader__dataset__pipeline__0=skip,
                        custom_hooks=[dict(type='SkippedImagesHook')])
    assert codes == [0], output[-3000:]
    assert f'skipped: image {image}' in output
    assert '1 damaged images have been skipped so far' in output


def test_a_few_kills_lose_at_most_an_interval_and_nothing_else(tmp_path):
    data = make_shapes(tmp_path / 'shapes', train=16, val=4)
    name = 'epochs, validation, best, averaged weights'
    result = chaos.try_scenario(name, 3, seed=1, folder=tmp_path, data=data)
    assert chaos.is_good(result), result
    assert result['kills'] == result['resumed'] == 3
    assert result['runs'] == result['equal'] > 0


def test_a_validation_that_was_due_is_made_up_for(data, tmp_path):
    """A checkpoint is saved before its epoch is validated, and may be all that is left."""
    options = dict(validate=True, train_cfg__val_interval=1, train_cfg__max_epochs=1)
    hook = dict(_delete_=True, type='SafeCheckpointHook', interval=1, save_best='auto')
    codes, output = run(data, tmp_path / 'run', default_hooks__checkpoint=hook, custom_hooks=[
        dict(type='DieBeforeValidation')], **options)
    assert codes == [-signal.SIGKILL], output[-2000:]
    assert [path.name for path in (tmp_path / 'run').glob('*.pth')] == ['epoch_1.pth']
    codes, output = run(data, tmp_path / 'run', default_hooks__checkpoint=hook, **options)
    assert codes == [0], output[-2000:]
    assert 'coco/bbox_mAP' in output
    assert len(list((tmp_path / 'run').glob('best_*.pth'))) == 1
    assert weights(tmp_path / 'run', 'epoch_1.pth')['continuation']['validated']


def validating(by_epoch):
    """Options of a run that validates, and keeps the best checkpoint of a metric that varies."""
    interval = 1 if by_epoch else EPOCH
    hook = dict(_delete_=True, type='SafeCheckpointHook', by_epoch=by_epoch, interval=interval,
                save_best='digits', rule='greater')
    options = dict(validate=True, default_hooks__checkpoint=hook,
                   val_evaluator=dict(_delete_=True, type='WeightsMetric'))
    if by_epoch:
        return options | dict(train_cfg__val_interval=1)
    return options | BY_ITERATION | dict(
        train_cfg=dict(BY_ITERATION['train_cfg'], val_interval=interval),
        default_hooks__logger__log_metric_by_epoch=False)


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_a_run_killed_before_and_after_a_pending_validation_ends_bit_identical(
        data, tmp_path, by_epoch):
    """The validation finds a new best, and the checkpoint that it belongs to is saved again."""
    options = validating(by_epoch)
    codes, output = run(data, tmp_path / 'straight', **options)
    assert codes == [0], output[-3000:]
    codes, output = run(data, tmp_path / 'killed', **options,
                        custom_hooks=[dict(type='DieBeforeValidation')])
    assert codes == [-signal.SIGKILL], output[-3000:]
    assert not list((tmp_path / 'killed').glob('best_*')), 'it was validated'
    codes, output = run(data, tmp_path / 'killed', act=kill_at(EPOCH + 1), **options)
    assert codes == [-signal.SIGKILL], output[-3000:]
    assert len(list((tmp_path / 'killed').glob('best_*'))) == 1, 'it was not validated on resume'
    codes, output = run(data, tmp_path / 'killed', **options)
    assert codes == [0], output[-3000:]
    assert not any(chaos.compare(tmp_path / 'straight', tmp_path / 'killed').values())


def test_a_previous_best_checkpoint_is_removed_although_its_run_was_killed(
        data, tmp_path, monkeypatch):
    options = validating(by_epoch=True)
    codes, output = run(data, tmp_path / 'straight', **options)
    assert codes == [0], output[-3000:]
    with monkeypatch.context() as patch:
        remove = os.remove
        patch.setattr(os, 'remove', lambda path: (
            os.kill(os.getpid(), signal.SIGKILL) if 'best_' in str(path) else remove(path)))
        codes, output = run(data, tmp_path / 'killed', **options)
        assert codes == [-signal.SIGKILL], output[-3000:]
    assert len(list((tmp_path / 'killed').glob('best_*'))) == 2
    codes, output = run(data, tmp_path / 'killed', **options)
    assert codes == [0], output[-3000:]
    assert not any(chaos.compare(tmp_path / 'straight', tmp_path / 'killed').values())


@HOOKS.register_module()
class DieBeforeValidation(Hook):

    def before_val(self, runner):
        WRITER.wait()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_restarted_process_resumes_by_itself(monkeypatch):
    from mmrla.commands import train
    args = train.build_parser().parse_args(['config.py'])
    for count, given, expected in (('0', None, None), ('1', None, 'auto'), ('0', 'a.pth', True),
                                   ('2', 'a.pth', 'restart'), ('0', 'auto', 'auto')):
        monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', count)
        args.resume, cfg = given, Config(dict(load_from='start.pth'))
        train.apply_arguments(cfg, args)
        assert cfg.get('resume') == expected
        assert cfg.load_from == ('a.pth' if given == 'a.pth' else 'start.pth')


def test_the_pointer_never_names_a_file_that_is_removed_on_resuming(data, tmp_path):
    """Killed between the new checkpoint and the pointer to it."""
    hook = mid_epoch() | dict(max_keep_ckpts=1)
    options = dict(default_hooks__checkpoint=hook, train_cfg__max_epochs=1)
    run(data, tmp_path / 'run', act=kill_at(2), **options)
    (tmp_path / 'run/iter_1.pth').write_bytes(b'an older one')
    (tmp_path / 'run/last_checkpoint').write_text(str(tmp_path / 'run/iter_1.pth'))
    checkpoint = weights(tmp_path / 'run', 'iter_2.pth')
    assert checkpoint['message_hub']['runtime_info']['keep_ckpt_ids'] == [1, 2]
    run(data, tmp_path / 'run', act=kill_at(3), **options | dict(
        default_hooks__checkpoint=hook | dict(interval=10)))
    assert not (tmp_path / 'run/iter_1.pth').exists()
    assert chaos.pointer_state(tmp_path / 'run') == 'readable'


FROZEN = dict(model__backbone__frozen_stages=1, model__backbone__norm_eval=True,
              train_cfg__max_epochs=1, resume=False)


def test_random_values_that_would_be_frozen_stop_the_run_before_data_is_read(data, tmp_path):
    codes, output = run(data, tmp_path / 'run', **FROZEN)
    assert codes == [1]
    assert 'frozen_stages=1' in output and '--from-scratch' in output and '--pretrained' in output
    assert 'loading annotations' not in output


def small_backbone(**kwargs):
    torch.manual_seed(1)
    net = RLAResNet(18, base_channels=8, norm_eval=False, zero_init_residual=False, **STAGES,
                    **kwargs)
    net.init_weights()
    return net


@pytest.mark.parametrize('rla, trains', [(None, True), (dict(channels=16), False)],
                         ids=['plain weights', 'RLA weights'])
def test_two_processes_train_what_the_weights_ask_for(data, tmp_path, rla, trains):
    """DDP is built before the weights are loaded, and must know what they freeze."""
    torch.save(small_backbone(rla=rla).state_dict(), tmp_path / 'weights.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth'))
    codes, output = run(data, tmp_path / 'run', world=2, model__backbone__init_cfg=init_cfg,
                        **FROZEN)
    assert codes == [0, 0], output[-3000:]
    trained = weights(tmp_path / 'run', 'epoch_1.pth')
    before = torch.load(tmp_path / 'weights.pth')
    state = trained['state_dict']
    assert torch.equal(state['backbone.layer1.0.conv1.weight'], before['layer1.0.conv1.weight'])
    if trains:
        assert state['backbone.rla.0.readers.1.weight'].abs().max() > 0
    else:
        for name, value in before.items():
            assert not name.startswith('rla.0.') or torch.equal(state[f'backbone.{name}'], value)
    assert (trained['state_dict']._metadata['backbone'].get('new_parts') == ['rla']) == trains


def test_a_resumed_run_needs_no_pretrained_weights(data, tmp_path):
    """The restart of a run must not depend on a download."""
    path = tmp_path / 'weights.pth'
    torch.save(small_backbone(rla=None).state_dict(), path)
    options = dict(FROZEN, resume=True, model__backbone__init_cfg=dict(
        type='Pretrained', checkpoint=str(path)))
    run(data, tmp_path / 'run', act=kill_at(3), **options | dict(
        default_hooks__checkpoint=mid_epoch()))
    path.unlink()
    codes, output = run(data, tmp_path / 'run', **options)
    assert codes == [0], output[-3000:]
    state = weights(tmp_path / 'run', 'epoch_1.pth')['state_dict']
    assert state._metadata['backbone']['new_parts'] == ['rla'], 'the hidden path is frozen now'
    codes, output = run(data, tmp_path / 'other', **options)
    assert codes == [1] and f'checkpoint {path} does not exist' in output


def test_a_torchvision_file_in_with_rla_is_loaded_reported_resumed_and_converted(data, tmp_path):
    network = dict(type='mmdet.ResNet', depth=18, base_channels=8, frozen_stages=1, **STAGES)
    path = tmp_path / 'resnet18.pth'
    before = randomise(MODELS.build(dict(network))).state_dict()
    torch.save({**before, 'fc.weight': torch.ones(5, 16), 'fc.bias': torch.ones(5)}, path)
    backbone = dict(type='WithRLA', backbone=network, rla=dict(channels=4))
    options = dict(train_cfg__max_epochs=2, model__backbone=dict(
        backbone, _delete_=True, init_cfg=dict(type='Pretrained', checkpoint=str(path))))
    codes, output = run(data, tmp_path / 'straight', **options)
    assert codes == [0], output[-3000:]
    assert f'ResNetWithRLA from {path}: {len(before)} loaded' in output
    assert 'fc.weight' in output and 'the hidden path is new' in output

    codes, output = run(data, tmp_path / 'killed', act=kill_at(EPOCH + 1), **options)
    assert codes == [-signal.SIGKILL], output[-3000:]
    path.unlink()
    codes, output = run(data, tmp_path / 'killed', **options)
    assert codes == [0] and 'epoch_1.pth' in output, output[-3000:]
    runs = [weights(tmp_path / name, 'epoch_2.pth') for name in ('straight', 'killed')]
    assert_same(*runs)
    straight, killed = (run['state_dict'] for run in runs)
    assert list(straight) == list(killed)
    for state in (straight, killed):  # the frozen part stays, the new hidden path along it trains
        assert state._metadata['backbone']['new_parts'] == ['rla']
        for name, value in before.items():
            frozen = name.startswith(('conv1', 'bn1', 'layer1')) or 'running' in name
            assert not frozen or torch.equal(state[f'backbone.{name}'], value), name
        assert state['backbone.rla.0.readers.1.weight'].abs().max() > 0
        assert state['backbone.rla.0.norms.0.running_mean'].abs().max() > 0

    convert_weights.main([str(tmp_path / 'killed/epoch_2.pth'), str(tmp_path / 'backbone.pth')])
    net = MODELS.build(backbone)
    report = load_weights(net, str(next(tmp_path.glob('backbone*.pth'))))
    assert not report.initial and net.new_parts == frozenset()  # its hidden path is trained now
    assert all(torch.equal(value, killed[f'backbone.{name}'])
               for name, value in net.state_dict().items())
