"""The results of a scenario as numbers, and the table over many of them."""
import collections
import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

from .equality import PARTS
from .scenarios import SCENARIOS
from .trials import Run

COMPARED = (*PARTS, 'last_step', 'best_checkpoint', 'logged_losses')


def result_of(name: str, seed: int, runs: Sequence[Run], seconds: float) -> Dict[str, Any]:
    """Count the outcomes of the runs of a scenario."""
    scenario = SCENARIOS[name]
    cycles = [cycle for run in runs for cycle in run.cycles]
    losses = [loss for run in runs for loss in run.losses()]
    allowed = [scenario.interval + (max(0, cycle.reached - cycle.saving) if cycle.saving else 0)
               for cycle, _ in losses]
    failed = [run for run in runs if run.final < 0 and run.cycles]
    moments = [cycle.moment for cycle in cycles]
    return dict(
        scenario=name, seed=seed, runs=len(runs),
        **{'interruptions' if scenario.obstacle else 'kills': len(cycles)},
        resumed=len(cycles) - len(failed),
        interval=scenario.interval,
        most_steps_lost=max((lost for _, lost in losses), default=0),
        most_steps_lost_if_nothing_was_written=max(
            (lost for cycle, lost in losses if not cycle.saving), default=0),
        lost_more_than_allowed=sum(
            lost > most for (_, lost), most in zip(losses, allowed, strict=True)),
        unreadable_pointers=sum(cycle.pointer == 'unreadable' for cycle in cycles),
        unreadable_files=sum(len(cycle.unreadable) for cycle in cycles),
        finished=sum(not run.problems for run in runs),
        equal=sum(not run.problems and not run.different for run in runs),
        different={part: sum(part in run.different for run in runs) for part in COMPARED},
        problems=[problem for run in runs for problem in run.problems],
        events=dict(collections.Counter(moment.event for moment in moments)),
        victims={} if scenario.obstacle else dict(
            collections.Counter(moment.victim for moment in moments)),
        while_a_file_was_written=sum(cycle.is_writing for cycle in cycles),
        seconds=round(seconds, 1),
        # event, its number, where in it, what, which; the steps from and to
        moments=[[[*cycle.moment[:2], round(cycle.moment.part, 3), *cycle.moment[3:],
                   cycle.resumed_at, cycle.reached] for cycle in run.cycles] for run in runs])


def is_good(result: Dict[str, Any]) -> bool:
    """Whether nothing was lost and all runs are equal."""
    count = result.get('kills', result.get('interruptions'))
    return SCENARIOS[result['scenario']].is_baseline or (
        result['resumed'] == count and result['finished'] == result['runs']
        and not result['problems'] and not any(result['different'].values())
        and not any(result[key] for key in (
            'lost_more_than_allowed', 'unreadable_pointers', 'unreadable_files')))


def read_results(paths: Sequence[Path]) -> List[Dict[str, Any]]:
    """The results in files that ``--json`` wrote."""
    return [result for path in sorted(paths) for result in json.loads(path.read_text())]


COLUMNS = ('runs of', 'seeds', 'runs', 'kills', 'resumed', 'most steps lost (interval)',
           'unreadable', 'equal to the bit')


def summarise(results: Sequence[Dict[str, Any]]) -> str:
    """A table in Markdown with a row for each scenario, and the sum of all kills."""
    rows = [COLUMNS, ('---',) * len(COLUMNS)]
    kinds = [name for name in SCENARIOS
             if any(result['scenario'] == name for result in results)]
    for name in kinds:
        rows.append(_row(name, [result for result in results if result['scenario'] == name]))
    ours = [result for result in results if not SCENARIOS[result['scenario']].is_baseline]
    rows.append(_row('**all of mmrla**', ours))
    return '\n'.join(f'| {" | ".join(row)} |' for row in rows) + '\n'


def _row(name: str, results: Sequence[Dict[str, Any]]) -> Sequence[str]:
    def total(key: str) -> int:
        return sum(result.get(key, 0) for result in results)

    kills, stops = total('kills'), total('interruptions')
    counts = [f'{kills:,}'] * bool(kills) + [f'{stops:,} stopped'] * bool(stops)
    lost = max(result['most_steps_lost'] for result in results)
    intervals = {result['interval'] for result in results}
    is_baseline = SCENARIOS[results[0]['scenario']].is_baseline
    equal = 'not compared' if is_baseline else f'{total("equal"):,} of {total("runs"):,}'
    return (name, str(len({result['seed'] for result in results})), f'{total("runs"):,}',
            ', '.join(counts), f'{total("resumed"):,}',
            f'{lost} ({intervals.pop()})' if len(intervals) == 1 else str(lost),
            str(total('unreadable_pointers') + total('unreadable_files')), equal)
