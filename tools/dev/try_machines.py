"""Train on two machines, which are network namespaces of this one, and lose one of them.

    python tools/dev/try_machines.py                      # needs root and iproute2
    python tools/dev/try_machines.py --scenarios lost

Makes two namespaces that are joined by a pair of interfaces, and removes them afterwards.
The host name resolves to 127.0.0.1 in both, as on many machines. `tools/dist_train.sh` trains
a small detector on the CPU, one process a machine; the work dir is shared. The script checks
exit codes, messages and checkpoints of each scenario, and ends after --timeout seconds.
"""
import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence

import torch

from mmrla.commands.paths import REPO
from mmrla.datasets import make_shapes

sys.path.insert(0, str(Path(__file__).parent))
from chaos import small_config  # noqa: E402

NAMESPACES = ('mmrla0', 'mmrla1')
ADDRESSES = ('10.77.0.1', '10.77.0.2')


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Make two namespaces that reach each other, and remove them."""
    def ip(*words: str) -> None:
        subprocess.run(['ip', *words], check=True)

    try:
        for name in NAMESPACES:
            ip('netns', 'add', name)
        ip('link', 'add', 'mmrla-a', 'netns', NAMESPACES[0], 'type', 'veth',
           'peer', 'name', 'mmrla-b', 'netns', NAMESPACES[1])
        for name, interface, address in zip(NAMESPACES, ('mmrla-a', 'mmrla-b'), ADDRESSES,
                                            strict=True):
            ip('-n', name, 'address', 'add', f'{address}/24', 'dev', interface)
            ip('-n', name, 'link', 'set', interface, 'up')
            ip('-n', name, 'link', 'set', 'lo', 'up')
        yield
    finally:
        for name in NAMESPACES:
            kill_processes(name)
            subprocess.run(['ip', 'netns', 'delete', name], check=False)


def kill_processes(namespace: str) -> None:
    """End all processes of a namespace with SIGKILL."""
    pids = subprocess.run(['ip', 'netns', 'pids', namespace], text=True, check=False,
                          stdout=subprocess.PIPE).stdout.split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


class Machine:
    """A run of dist_train.sh in one namespace.

    Args:
        number: The number of the machine.
        folder: The folder of the config.
        name: The name of the work dir in it.
        options: Arguments of tools/train.py.
        environment: NNODES and other variables of dist_train.sh.
    """

    def __init__(self, number: int, folder: Path, name: str, options: Sequence[str],
                 environment: Dict[str, str]) -> None:
        self.number = number
        self.log = folder / f'{name}-machine{number}.log'
        variables = dict(NNODES='2', NODE_RANK=str(number), MASTER_ADDR=ADDRESSES[0],
                         OMP_NUM_THREADS='1', RDZV_TIMEOUT='60') | environment
        with self.log.open('a') as log:
            self._process = subprocess.Popen(
                ['ip', 'netns', 'exec', NAMESPACES[number], REPO / 'tools/dist_train.sh',
                 folder / 'small.py', '1', '--work-dir', folder / name, *options],
                env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)

    def kill(self) -> None:
        """Take the machine away."""
        kill_processes(NAMESPACES[self.number])
        self._process.wait()

    def code(self) -> int:
        """Wait for the end; the exit code."""
        return self._process.wait()

    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self._process.poll() is None

    def last_line(self) -> str:
        """The last line that the run printed."""
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else ''


class Trial:
    """The scenarios.

    Args:
        folder: A folder for the data and the work dirs.
        epochs: The length of a run. It must last until a machine is back, half a minute at least.
    """

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        self.start = time.monotonic()
        data = make_shapes(folder / 'shapes', train=8, val=2)
        small_config(data, folder / 'work', log_level='INFO', train_cfg__max_epochs=epochs,
                     default_hooks__checkpoint__max_keep_ckpts=-1).dump(folder / 'small.py')

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f'{time.monotonic() - self.start:5.0f} s  {line}', flush=True)

    def machine(self, number: int, name: str, *options: str, **environment: str) -> Machine:
        """Start a machine."""
        self.say(f'machine {number} starts: {environment} {" ".join(options)}')
        return Machine(number, self.folder, name, options, environment)

    def both(self, name: str, *options: str, **environment: str) -> List[Machine]:
        """Start both machines."""
        return [self.machine(number, name, *options, **environment) for number in (0, 1)]

    def wait_for(self, what: str, condition: Callable[[], bool], *machines: Machine) -> None:
        """Wait for a condition, while machines run."""
        while not condition():
            for machine in machines:
                if not machine.is_running():
                    raise SystemExit(f'machine {machine.number} ended: {machine.last_line()}')
            time.sleep(0.1)
        self.say(what)

    def saved(self, name: str, epoch: int) -> Callable[[], bool]:
        """Whether an epoch of a run is saved."""
        return lambda: (self.folder / name / f'epoch_{epoch}.pth').exists()

    def check_end(self, machines: Sequence[Machine], expected: Sequence[int]) -> None:
        """Wait for the end of machines, and compare the exit codes."""
        for machine, code in zip(machines, expected, strict=True):
            found = machine.code()
            self.say(f'machine {machine.number} ended with {found}: {machine.last_line()[:300]}')
            if found != code:
                raise SystemExit(f'{machine.log.read_text()[-4000:]}\nthe code is not {code}')

    def check_files(self, name: str, epochs: int, processes: int = 2) -> None:
        """Check that there is one set of checkpoints, and its last one."""
        files = {path.name for path in (self.folder / name).glob('*.pth')}
        last = torch.load(self.folder / name / f'epoch_{epochs}.pth', weights_only=False)
        steps = last['meta']['iter']
        self.say(f'{len(files)} checkpoints, the last after {steps} iterations with '
                 f'{processes} process(es)')
        if files != {f'epoch_{number}.pth' for number in range(1, epochs + 1)}:
            raise SystemExit(f'these checkpoints are not those of {epochs} epochs: {files}')

    def resumed(self) -> None:
        """Train on both, then resume on both."""
        name = 'resumed'
        self.check_end(self.both(name, '--cfg-options', 'train_cfg.max_epochs=2'), (0, 0))
        self.check_end(self.both(name, '--resume', '--cfg-options', 'train_cfg.max_epochs=4'),
                       (0, 0))
        self.check_files(name, 4)

    def lost(self) -> None:
        """Lose a machine without restarts: the other one ends, and the run can be resumed."""
        name = 'lost'
        machines = self.both(name)
        self.wait_for('epoch 1 is saved; machine 1 is killed', self.saved(name, 1), *machines)
        machines[1].kill()
        self.check_end(machines[:1], (1,))
        if 'another process of this run ended' not in machines[0].last_line():
            raise SystemExit('the message does not say why')
        self.check_end(self.both(name, '--resume', '--cfg-options', 'train_cfg.max_epochs=4'),
                       (0, 0))
        self.check_files(name, 4)

    def back(self) -> None:
        """Lose a machine that comes back, with restarts."""
        name = 'back'
        machines = self.both(name, MAX_RESTARTS='3')
        self.wait_for('epoch 1 is saved; machine 1 is killed', self.saved(name, 1), *machines)
        machines[1].kill()
        time.sleep(10)
        machines[1] = self.machine(1, name, MAX_RESTARTS='3')
        self.check_end(machines, (0, 0))
        self.check_files(name, self.epochs)

    def gone(self) -> None:
        """Lose a machine for good, with restarts: the other one waits for it, then ends."""
        name = 'gone'
        machines = self.both(name, MAX_RESTARTS='3', RDZV_TIMEOUT='30')
        self.wait_for('epoch 1 is saved; machine 1 is killed', self.saved(name, 1), *machines)
        machines[1].kill()
        self.check_end(machines[:1], (1,))

    def fewer(self) -> None:
        """Continue with one machine, and with two again when the other one is back."""
        name, settings = 'fewer', dict(NNODES='1:2', MAX_RESTARTS='3')
        machines = self.both(name, **settings)
        self.wait_for('epoch 1 is saved; machine 1 is killed', self.saved(name, 1), *machines)
        machines[1].kill()
        self.wait_for('machine 0 saves further epochs alone', self.saved(name, 4), machines[0])
        machines[1] = self.machine(1, name, **settings)
        self.check_end(machines, (0, 0))
        self.check_files(name, self.epochs)


SCENARIOS = ('resumed', 'lost', 'back', 'gone', 'fewer')


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--scenarios', nargs='+', choices=SCENARIOS, default=SCENARIOS,
                        help='what to try, by default all')
    parser.add_argument('--epochs', type=int, default=200,
                        help='length of a run, which must last half a minute at least')
    parser.add_argument('--timeout', type=int, default=1200, metavar='SECONDS',
                        help='end with an error after this time')
    parser.add_argument('--folder', type=Path, help='keep data, work dirs and logs here')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if os.getuid() != 0:
        raise SystemExit('network namespaces need root')
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f'not finished after {args.timeout} s'))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended by SIGTERM'))
    signal.alarm(args.timeout)
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix='machines-')))
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(network())
        trial = Trial(folder, args.epochs)
        for name in args.scenarios:
            scenario = getattr(trial, name)
            trial.say(f'{name}: {scenario.__doc__}')
            scenario()


if __name__ == '__main__':
    main()
