"""Train on a Slurm cluster of this machine: stopped in three ways, re-queued, resumed.

    apt-get install slurm-wlm munge        # Debian; this script needs root
    python tools/dev/try_slurm.py

Starts munged, slurmctld and slurmd with a config of its own in a temporary folder, and ends
them afterwards. `tools/slurm_train.sh` trains a small detector on the CPU:

- with 1 and with 2 tasks, undisturbed;
- with 2 tasks and REQUEUE=1. This job is pre-empted by one of a higher priority, then
  re-queued by hand, then Slurm announces its time limit. It must end by itself, with the
  weights of the undisturbed run, to the bit.

The script ends after --timeout seconds in any case.
"""
import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, Optional, Sequence

import torch

from mmrla.commands.paths import REPO
from mmrla.datasets import make_shapes

sys.path.insert(0, str(Path(__file__).parent))
from chaos import small_config  # noqa: E402

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'scontrol')
# Slurm sends SIGUSR1 an hour before the limit: lowering the limit by an hour, which takes no
# hour to try, makes it send the signal within half a minute.
LIMIT, LOWER_LIMIT, ANNOUNCED = '2:00:00', '1:00:00', '--signal=USR1@3600'
CONFIG = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=2
"""
# The lines of a job's log that tell its story.
STORY = re.compile(r'resuming from|stopped by|goes back|DUE TO|Saving checkpoint at|CANCELLED')


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Start a cluster of one machine, and end it."""
    (folder / 'munge.key').write_bytes(os.urandom(1024))
    (folder / 'munge.key').chmod(0o600)
    for name in ('state', 'spool'):
        (folder / name).mkdir()
    config = folder / 'slurm.conf'
    config.write_text(CONFIG.format(host=socket.gethostname().split('.')[0], folder=folder))
    os.environ['SLURM_CONF'] = str(config)
    names = dict(socket='munge.socket', key_file='munge.key', pid_file='munged.pid',
                 seed_file='munge.seed', log_file='munged.log')
    daemons = [['munged', '--force', '--foreground', *(
        f'--{option.replace("_", "-")}={folder / name}' for option, name in names.items())],
               ['slurmctld', '-D', '-f', config], ['slurmd', '-D', '-f', config]]
    with contextlib.ExitStack() as stack:
        for daemon in daemons:
            stack.enter_context(running(daemon))
            time.sleep(2)
        yield


@contextlib.contextmanager
def running(command: Sequence[object]) -> Iterator[None]:
    """Run a daemon, and end it."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Trial:
    """The runs of one cluster.

    Args:
        folder: A folder for the data and the work dirs.
        epochs: The length of a run. It must train for a minute at least.
    """

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        self.start = time.monotonic()
        self.config = folder / 'small.py'
        data = make_shapes(folder / 'shapes', train=16, val=2)
        small_config(data, folder / 'work', log_level='INFO', train_cfg__max_epochs=epochs,
                     default_hooks__checkpoint__max_keep_ckpts=2).dump(self.config)

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f'{time.monotonic() - self.start:5.0f} s  {line}', flush=True)

    def submit(self, name: str, *options: str, **environment: str) -> str:
        """Run slurm_train.sh; return what it printed."""
        environment = dict(CPUS_PER_TASK='1', **environment)
        self.say(' '.join(f'{key}={shlex.quote(value)}' for key, value in environment.items()) +
                 f' tools/slurm_train.sh low trial small.py {name} {" ".join(options)}')
        done = subprocess.run(
            [REPO / 'tools/slurm_train.sh', 'low', 'trial', self.config, self.folder / name,
             *options], env={**os.environ, **environment, 'OMP_NUM_THREADS': '1'}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f'{done.stdout[-3000:]}\nslurm_train.sh ended with {done.returncode}')
        return done.stdout

    def undisturbed(self, tasks: int, epochs: int) -> Path:
        """Train without an interruption; the last checkpoint."""
        name = f'undisturbed_{tasks}'
        self.submit(name, '--cfg-options', f'train_cfg.max_epochs={epochs}', GPUS=str(tasks),
                    SRUN_ARGS='--gres=none')
        self.say('ended with code 0')
        return self.folder / name / f'epoch_{epochs}.pth'

    def disturbed(self) -> Path:
        """Train with three interruptions; the last checkpoint."""
        job = self.submit('disturbed', REQUEUE='1', GPUS='2', SRUN_ARGS=(
            f'--gres=none --time={LIMIT} {ANNOUNCED}')).split()[-1]
        self.say(f'submitted batch job {job}')
        for number, disturb in enumerate((self.preempt, self.requeue, self.lower_limit)):
            self.wait(job, f'runs (restarts: {number})', lambda state, number=number: (
                state['JobState'] == 'RUNNING' and state['Restarts'] == str(number)
                and self.saved_since_start(number)))
            disturb(job)
            self.wait(job, 'is back in the queue', lambda state, number=number: (
                int(state['Restarts']) > number))
        self.set_limit(job, LIMIT)
        self.wait(job, 'ended', lambda state: state['JobState'] == 'COMPLETED')
        self.say(f'the story in disturbed/slurm-{job}.log:')
        print(shortened((self.folder / f'disturbed/slurm-{job}.log').read_text()))
        return self.folder / f'disturbed/epoch_{self.epochs}.pth'

    def saved_since_start(self, restarts: int) -> bool:
        """Whether the job saved a checkpoint since it was started for the last time."""
        log = next(self.folder.glob('disturbed/slurm-*.log'), None)
        parts = re.split('resuming from', log.read_text()) if log else ['']
        return len(parts) == restarts + 1 and 'Saving checkpoint' in parts[-1]

    def preempt(self, job: str) -> None:
        """Submit a short job to the partition of a higher priority."""
        self.say('sbatch --partition=high --ntasks=2 --wrap "sleep 5"')
        subprocess.run(['sbatch', '--partition=high', '--ntasks=2', '--output=/dev/null',
                        '--wrap', 'sleep 5'], check=True, stdout=subprocess.DEVNULL)

    def requeue(self, job: str) -> None:
        """Send the job back to the queue."""
        self.say(f'scontrol requeue {job}')
        subprocess.run(['scontrol', 'requeue', job], check=True)

    def lower_limit(self, job: str) -> None:
        """Let Slurm announce the time limit."""
        self.set_limit(job, LOWER_LIMIT)

    def set_limit(self, job: str, limit: str) -> None:
        """Change the time limit of the job."""
        self.say(f'scontrol update JobId={job} TimeLimit={limit}')
        subprocess.run(['scontrol', 'update', f'JobId={job}', f'TimeLimit={limit}'], check=True)

    def wait(self, job: str, what: str, condition: Callable[[Dict[str, str]], bool]) -> None:
        """Wait until a job is in a state."""
        while True:
            state = job_state(job)
            if condition(state):
                self.say(f'job {job} {what}')
                return
            if state['JobState'] not in ('PENDING', 'RUNNING', 'COMPLETING', 'CONFIGURING'):
                log = (self.folder / f'disturbed/slurm-{job}.log').read_text()
                raise SystemExit(f'{log[-3000:]}\njob {job} ended: {state["JobState"]}')
            time.sleep(1)


def job_state(job: str) -> Dict[str, str]:
    """The fields that ``scontrol show job`` prints for a job."""
    text = subprocess.run(['scontrol', '--oneliner', 'show', 'job', job], text=True, check=True,
                          stdout=subprocess.PIPE).stdout
    return dict(word.split('=', 1) for word in text.split() if '=' in word)


def shortened(log: str) -> str:
    """The lines of a log about saving and resuming; of consecutive saves only the last."""
    lines = [line for line in log.splitlines() if STORY.search(line)]
    return '\n'.join(line for line, after in zip(lines, [*lines[1:], ''], strict=True)
                     if not ('Saving' in line and 'Saving' in after))


def equal(one: Path, other: Path) -> bool:
    """Whether the weights of two checkpoints are equal to the bit."""
    one, other = (torch.load(path, weights_only=False)['state_dict'] for path in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=200,
                        help='length of a run, which must train for a minute at least')
    parser.add_argument('--timeout', type=int, default=900, metavar='SECONDS',
                        help='end with an error after this time')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        raise SystemExit(f'this needs root and {", ".join(missing) or "nothing else"}; '
                         'Debian: apt-get install slurm-wlm munge')
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f'not finished after {args.timeout} s'))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended by SIGTERM'))
    signal.alarm(args.timeout)
    with tempfile.TemporaryDirectory(prefix='slurm-') as name, cluster(Path(name)):
        trial = Trial(Path(name), args.epochs)
        trial.undisturbed(1, epochs=1)
        straight = trial.undisturbed(2, args.epochs)
        if not equal(straight, trial.disturbed()):
            raise SystemExit('the weights of the disturbed run differ')
        trial.say('the weights are those of the undisturbed run, to the bit')


if __name__ == '__main__':
    main()
