"""Kill runs of several kinds, resume them, and compare each with an undisturbed run.

    python tools/dev/chaos_compare.py --kills 5 --seed 0 --json result.json
    python tools/dev/chaos_compare.py --scenarios "4 processes" --kills 5 --seed 3

Every scenario trains a small detector twice: undisturbed, and with SIGKILLs at times from
the seed. A kill hits one process of the run, or a worker of its loader. The last
checkpoints must be equal to the bit: weights, averaged weights, optimizer, schedules.
"""
import argparse
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from mmrla.datasets import make_shapes

spec = importlib.util.spec_from_file_location('chaos', Path(__file__).with_name('chaos.py'))
chaos = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chaos)

STEPS = 24
WORKERS = dict(train_dataloader__num_workers=2, train_dataloader__persistent_workers=True)
BY_ITERATION = dict(
    train_cfg=dict(_delete_=True, type='IterBasedTrainLoop', max_iters=STEPS, val_interval=6),
    train_dataloader__sampler=dict(_delete_=True, type='InfiniteSampler'))


class Scenario(NamedTuple):
    """How a run trains.

    Attributes:
        processes: The number of processes.
        options: Settings of the config.
        validate: Whether it validates and keeps the best checkpoint.
        kills_worker: Whether a worker of the loader is killed instead of a process.
    """
    processes: int = 1
    options: Dict[str, Any] = {}
    validate: bool = False
    kills_worker: bool = False


SCENARIOS = {
    'within epochs': Scenario(),
    'averaged weights, validation, best': Scenario(
        options=dict(custom_hooks=[dict(type='EMAHook')], train_cfg__val_interval=1),
        validate=True),
    'iterations, persistent workers': Scenario(options={**BY_ITERATION, **WORKERS}),
    'a worker is killed': Scenario(options=WORKERS, kills_worker=True),
    '2 processes': Scenario(2),
    '4 processes': Scenario(4, dict(train_dataloader__batch_size=1)),
}


def start(scenario: Scenario, data: Path, work_dir: Path, progress: Any) -> List[int]:
    """Start the processes of a run; their ids."""
    port = random.randrange(20000, 60000)
    hook = dict(_delete_=True, type='SafeCheckpointHook', by_epoch=False, interval=2,
                max_keep_ckpts=2, save_best='auto' if scenario.validate else None)
    options = dict(default_hooks__checkpoint=hook, resume=True, **scenario.options)
    if 'train_cfg' not in options:
        images = scenario.options.get('train_dataloader__batch_size', 2) * scenario.processes
        options['train_cfg__max_epochs'] = STEPS // (16 // images)

    def work(rank: int) -> None:
        if scenario.processes > 1:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(scenario.processes),
                              LOCAL_RANK=str(rank), MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        cfg = chaos.small_config(data, work_dir, validate=scenario.validate, **options)
        if not scenario.validate and 'train_cfg' in scenario.options:
            cfg.train_cfg.pop('val_interval', None)
        cfg.launcher = 'pytorch' if scenario.processes > 1 else 'none'
        chaos.train(cfg, progress if rank == 0 else chaos.Progress())

    return [chaos.fork(lambda rank=rank: work(rank), Path(f'{work_dir}.log'))
            for rank in range(scenario.processes)]


def wait_all(children: List[int]) -> List[int]:
    """The exit codes of processes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def workers_of(process: int) -> List[int]:
    """The child processes of a process."""
    path = Path(f'/proc/{process}/task/{process}/children')
    return [int(word) for word in path.read_text().split()]


def kill_once(scenario: Scenario, children: List[int], progress: Any,
              rng: random.Random) -> Optional[int]:
    """Kill one process of a run; the step it was at, or None if the run ended before."""
    steps, part, index = rng.randint(1, 4), rng.random(), rng.randrange(scenario.processes)
    while not (progress.resumed_at >= 0 and progress.step >= progress.resumed_at + steps):
        if os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        time.sleep(0.002)
    time.sleep(part * 0.3)
    targets = workers_of(children[0]) if scenario.kills_worker else [children[index]]
    for target in targets[:1]:
        os.kill(target, signal.SIGKILL)
    return progress.step


def last_checkpoint(work_dir: Path) -> Dict[str, Any]:
    """The newest checkpoint of a run."""
    return torch.load((work_dir / 'last_checkpoint').read_text().strip(), weights_only=True)


def differences(one: Any, other: Any, name: str = '') -> List[str]:
    """The entries of two checkpoints that are not equal to the bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [name]
    if isinstance(one, dict):
        return [found for key in {*one, *other} for found in (
            differences(one[key], other[key], f'{name}.{key}')
            if key in one and key in other else [f'{name}.{key}'])]
    if isinstance(one, (list, tuple)):
        return [found for number, (a, b) in enumerate(zip(one, other, strict=True))
                for found in differences(a, b, f'{name}.{number}')]
    return [] if one == other else [name]


def run(name: str, kills: int, seed: int, folder: Path, data: Path) -> Dict[str, Any]:
    """Run one scenario."""
    scenario, rng, progress = SCENARIOS[name], random.Random(f'{seed} {name}'), chaos.Progress()
    codes = wait_all(start(scenario, data, folder / 'straight', progress))
    steps, unreadable, not_resumed = [], 0, 0
    while True:
        progress.clear()
        children = start(scenario, data, folder / 'killed', progress)
        step = kill_once(scenario, children, progress, rng) if len(steps) < kills else None
        ended = wait_all(children)
        if step is None:
            break
        steps.append(step)
        unreadable += chaos.pointer_state(folder / 'killed') == 'unreadable'
        not_resumed += progress.resumed_at < 0
    keys = ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
    one, other = (last_checkpoint(folder / which) for which in ('straight', 'killed'))
    different = [found for key in keys if key in one
                 for found in differences(one[key], other[key], key)]
    best = [sorted(path.name for path in (folder / which).glob('best_*'))
            for which in ('straight', 'killed')]
    return dict(scenario=name, seed=seed, kills=len(steps), killed_at_steps=steps,
                exit_codes=[codes, ended], unreadable_pointers=unreadable,
                not_resumed=not_resumed, last_steps=[one['meta']['iter'], other['meta']['iter']],
                best_checkpoints_equal=best[0] == best[1], different_entries=len(different))


def is_good(result: Dict[str, Any]) -> bool:
    """Whether nothing was lost and the runs are equal."""
    return (not result['different_entries'] and not result['unreadable_pointers']
            and result['best_checkpoints_equal'] and not any(map(any, result['exit_codes']))
            and len(set(result['last_steps'])) == 1)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--scenarios', nargs='+', default=list(SCENARIOS), choices=SCENARIOS,
                        help='the kinds of runs')
    parser.add_argument('--kills', type=int, default=5, help='kills of each scenario')
    parser.add_argument('--seed', type=int, default=0, help='seed of the kills')
    parser.add_argument('--json', type=Path, help='a file for the results')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    chaos.prepare()
    results = []
    for name in args.scenarios:
        with tempfile.TemporaryDirectory(prefix='chaos-') as folder:
            data = make_shapes(Path(folder) / 'shapes', train=16, val=2)
            results.append(run(name, args.kills, args.seed, Path(folder), data))
            if not is_good(results[-1]):
                print(Path(f'{folder}/killed.log').read_text()[-3000:])
        print(('equal: ' if is_good(results[-1]) else 'FAILED: ') + json.dumps(results[-1]),
              flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + '\n')
    sys.exit(0 if all(map(is_good, results)) else 1)


if __name__ == '__main__':
    main()
