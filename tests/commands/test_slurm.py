"""What tools/slurm_train.sh asks of Slurm, with substitutes for Slurm's programs.

tools/dev/try_slurm.py runs it on a real cluster of one machine.
"""
import os
import stat

import pytest

from support.commands import call, run_command

CONFIG = 'configs/shapes/faster_rcnn_rla_r18_fpn.py'
SHOWS_ARGUMENTS = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'


@pytest.fixture
def environment(tmp_path):
    """Variables for a machine whose Slurm only prints what it is asked for."""
    for name in ('srun', 'sbatch', 'scontrol'):
        program = tmp_path / 'bin' / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(SHOWS_ARGUMENTS)
        program.chmod(0o755)
    return {**os.environ, 'PATH': f'{tmp_path}/bin:{os.environ["PATH"]}', 'GPUS': '4',
            'SLURM_JOB_ID': '7'}


def test_srun_gets_the_arguments_of_mmdets_script(environment):
    words = call('tools/slurm_train.sh', 'gpu', 'my job', CONFIG, 'work', '--amp', env={
        **environment, 'SRUN_ARGS': '--time=1:00 --mem=8G'}).splitlines()
    assert words[0] == 'srun'
    for word in ('--partition=gpu', '--job-name=my job', '--gres=gpu:4', '--ntasks=4',
                 '--ntasks-per-node=4', '--cpus-per-task=5', '--time=1:00', '--mem=8G', CONFIG,
                 '--work-dir', 'work', 'slurm', '--amp'):
        assert word in words


def test_requeue_submits_a_batch_job(environment, tmp_path):
    words = call('tools/slurm_train.sh', 'gpu', 'job', CONFIG, tmp_path / 'work', env={
        **environment, 'REQUEUE': '1', 'SRUN_ARGS': '--signal=USR1@60'}).splitlines()
    assert words[0] == 'sbatch'
    for word in ('--requeue', '--open-mode=append', '--partition=gpu', '--ntasks=4', CONFIG):
        assert word in words
    signals = [word for word in words if word.startswith('--signal=')]
    assert signals == ['--signal=USR1@120', '--signal=USR1@60'], 'the last one counts'
    assert (tmp_path / 'work').is_dir(), 'Slurm does not make the folder of the log'


def job(environment, work_dir, code, saves):
    """Run the batch job with a command that ends with a code."""
    command = work_dir / 'train'
    command.write_text('#!/bin/sh\n' + (f'echo {saves} > {work_dir}/last_checkpoint\n'
                                        if saves else '') + f'exit {code}\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return run_command('tools/slurm_job.sh', work_dir, command, env=environment)


@pytest.mark.parametrize('code', [138, 143])
def test_a_stopped_job_that_saved_is_queued_again(environment, tmp_path, code):
    (tmp_path / 'last_checkpoint').write_text('epoch_1.pth\n')
    result = job(environment, tmp_path, code, 'iter_9.pth')
    assert result.stdout.splitlines()[-3:] == ['scontrol', 'requeue', '7'], result.stdout


@pytest.mark.parametrize('code, saves', [(0, 'iter_9.pth'), (1, 'iter_9.pth'), (138, None)])
def test_no_other_job_is_queued_again(environment, tmp_path, code, saves):
    (tmp_path / 'last_checkpoint').write_text('epoch_1.pth\n')
    result = job(environment, tmp_path, code, saves)
    assert result.returncode == code
    assert 'scontrol' not in result.stdout
    assert ('saved no checkpoint' in result.stderr) == (code == 138)
