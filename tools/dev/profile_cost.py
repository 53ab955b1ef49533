"""Show where RLA's additional time goes, by kind of operator.

    OMP_NUM_THREADS=2 python tools/dev/profile_cost.py --output docs/performance/profile

An RLA network and mmdet's ResNet run alternately in torch's profiler, or in that of
onnxruntime. Each operator call, and each pause between two, counts with its shortest time of
all rounds, so that other processes disturb the sum little. A row is RLA minus plain, as a
share of the plain time.
``--from-json`` makes the table again.
"""
import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.profiler import ProfilerActivity, profile

from mmrla.commands import benchmark
from mmrla.weights.writing import write_file

PLAIN = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'
RLA = 'configs/faster_rcnn_rla_r50_fpn_1x.py'
ECA = 'configs/faster_rcnn_rla_eca_r50_fpn_1x.py'
SMALL = ('--batch', '2', '--size', '320', '320')
LARGE = ('--batch', '1', '--size', '800', '1344')
HIDDEN = 32  # channels of h; no other convolution of these networks has so few


class Case(NamedTuple):
    """What is compared.

    Attributes:
        config: The config of the network with RLA.
        mode: A mode of ``tools/benchmark.py``.
        arguments: Its other arguments.
        options: Settings of the backbones.
    """
    config: str
    mode: str
    arguments: Tuple[str, ...]
    options: Tuple[str, ...] = ()


CASES = {
    'training step, R152, 2 x 320x320': Case(RLA, 'train', SMALL, ('depth=152',)),
    'training step, R50, 1 x 800x1344': Case(RLA, 'train', LARGE),
    'training step, R50, channels_last': Case(RLA, 'train', (*SMALL, '--channels-last')),
    'training step, R50, channels_last, BN training': Case(
        RLA, 'train', (*SMALL, '--channels-last'), ('norm_eval=False',)),
    'inference, R50, channels_last': Case(RLA, 'infer', (*SMALL, '--channels-last')),
    'inference, R50, fused, channels_last': Case(RLA, 'fused', (*SMALL, '--channels-last')),
    'onnxruntime, R50, RLA, 1 x 800x1344': Case(RLA, 'onnx', LARGE),
    'onnxruntime, R50, ECA + RLA, 1 x 800x1344': Case(ECA, 'onnx', LARGE),
}

BETWEEN = 'between operators'
FORWARD, BACKWARD, HIDDEN_FORWARD, HIDDEN_BACKWARD, REST = (
    'other convolutions', 'other convolutions, backward', 'convolutions of h',
    'convolutions of h, backward', 'rest')
# The first part of an operator's name in lower case that is found decides.
KINDS = {
    'pool': 'pooling', 'reducemean': 'pooling',
    'norm': 'norms', 'addcmul': 'norms', 'tanh': 'tanh',
    'relu': 'ReLU', 'threshold': 'ReLU', 'clamp_min': 'ReLU',
    'reorder': 'copies', 'copy': 'copies', 'fill_': 'copies', 'zero_': 'copies',
    'bmm': 'matrix products', 'matmul': 'matrix products',
    'addmm': 'matrix products', 'gemm': 'matrix products', '::mm': 'matrix products',
    '::add': 'sums and products', '::mul': 'sums and products', '::sum': 'sums and products',
}
# The others are operators of onnxruntime.
EXACT = {BETWEEN: BETWEEN, 'Add': 'sums and products', 'Mul': 'sums and products'}
COLUMNS = (HIDDEN_FORWARD, HIDDEN_BACKWARD, FORWARD, BACKWARD, 'norms', 'tanh', 'ReLU', 'pooling',
           'sums and products', 'copies', 'matrix products', REST, BETWEEN)


class Call(NamedTuple):
    """An operator call.

    Attributes:
        name: The operator.
        shapes: The shapes of its tensors.
        time: Microseconds, without those of the operators it calls.
    """
    name: str
    shapes: List[List[int]]
    time: float


def kind_of(call: Call) -> str:
    """The column of the table that a call belongs to."""
    if 'conv' in call.name.lower():
        is_backward = 'backward' in call.name.lower()
        weight = call.shapes[2 if is_backward else 1:][:1]
        is_hidden = bool(weight) and HIDDEN in weight[0][:2]
        return {(False, False): FORWARD, (False, True): BACKWARD, (True, False): HIDDEN_FORWARD,
                (True, True): HIDDEN_BACKWARD}[is_hidden, is_backward]
    if call.name in EXACT:
        return EXACT[call.name]
    name = call.name.lower()
    return next((kind for part, kind in KINDS.items() if part in name), REST)


def with_gaps(calls: List[Tuple[float, float, Call]]) -> List[Call]:
    """Calls of the outermost level, and between them calls ``BETWEEN`` of nothing.

    Args:
        calls: Start, end and call, in any order.
    """
    found, last = [], None
    for start, end, call in sorted(calls, key=lambda each: each[0]):
        found += [Call(BETWEEN, [], 0 if last is None else max(0, start - last)), call]
        last = end
    return found


def torch_calls(function: Callable[[], None]) -> List[Call]:
    """The operator calls of one run."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        function()
    outer, inner = [], []
    for event in found.events():
        call = Call(event.name, event.input_shapes, event.self_cpu_time_total)
        if event.cpu_parent is None:
            outer.append((event.time_range.start, event.time_range.end, call))
        else:
            inner.append(call)
    return with_gaps(outer) + inner


def onnx_calls(path: Path) -> List[List[Call]]:
    """The calls of each run in a profile that onnxruntime wrote."""
    runs: List[List[Tuple[float, float, Call]]] = [[]]
    for event in json.loads(path.read_text()):
        if event['name'] == 'model_run':  # it follows its nodes
            runs.append([])
        elif event.get('cat') == 'Node' and event['name'].endswith('_kernel_time'):
            shapes = [next(iter(shape.values())) for shape in event['args']['input_type_shape']]
            call = Call(event['args']['op_name'], shapes, event['dur'])
            runs[-1].append((event['ts'], event['ts'] + event['dur'], call))
    return [with_gaps(run) for run in runs[:-1]]


def by_kind(runs: List[List[Call]]) -> Dict[str, float]:
    """Microseconds by column, from the shortest time of each call in all runs."""
    totals = dict.fromkeys(COLUMNS, 0.0)
    for same in zip(*runs, strict=True):
        if len({call.name for call in same}) > 1:
            raise RuntimeError(f'the runs differ in their operators: {same}')
        totals[kind_of(same[0])] += min(call.time for call in same)
    return totals


def profiles(subjects: List[benchmark.Subject], mode: str, rounds: int) -> List[Dict[str, float]]:
    """:func:`by_kind` of subjects that run in turn, after a round to warm up."""
    functions = [subject.call(mode) for subject in subjects]
    if mode != 'onnx':
        for function in functions:
            function()
        runs = [[torch_calls(function) for function in functions] for _ in range(rounds)]
        return [by_kind(list(each)) for each in zip(*runs, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        for number, subject in enumerate(subjects):
            subject.session = subject.onnx_session(Path(folder, f'run{number}'))
        for _ in range(rounds + 1):
            for function in functions:
                function()
        return [by_kind(onnx_calls(Path(subject.session.end_profiling()))[1:])
                for subject in subjects]


def measure(case: Case, rounds: int) -> Dict[str, Any]:
    """A row of the table: the shares of the plain time by kind, and their sum."""
    options = [f'model.backbone.{option}' for option in
               ('frozen_stages=-1', 'norm_eval=True', *case.options)]
    args = benchmark.parse_args([PLAIN, case.config, '--backbone', '--modes', case.mode,
                                 *case.arguments, '--cfg-options', *options])
    plain, ours = profiles([benchmark.Subject(name, args) for name in args.configs],
                           case.mode, rounds)
    whole = sum(plain.values())
    shares = {kind: (ours[kind] - plain[kind]) / whole for kind in COLUMNS}
    return dict(shares=shares, sum=sum(shares.values()),
                plain={kind: time / whole for kind, time in plain.items()})


def table(rows: Dict[str, Dict[str, Any]]) -> str:
    """A Markdown table, in percent of the plain time: a column for each case."""
    lines = ['| | ' + ' | '.join(rows) + ' |', '|---' * (len(rows) + 1) + '|']
    for kind in COLUMNS:
        values = [100 * row['shares'][kind] for row in rows.values()]
        lines.append(f'| {kind} | ' + ' | '.join(f'{value:+.1f}' for value in values) + ' |')
    sums = ' | '.join(f'**{100 * row["sum"]:+.1f}**' for row in rows.values())
    return '\n'.join([*lines, f'| **sum** | {sums} |', ''])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cases', nargs='+', choices=CASES, default=list(CASES), metavar='CASE',
                        help=f'by default all: {", ".join(CASES)}')
    parser.add_argument('--rounds', type=int, default=7, help='runs of each network')
    parser.add_argument('--output', type=Path, required=True,
                        help='folder for results.json and table.md; other cases stay in them')
    parser.add_argument('--from-json', action='store_true',
                        help='make the table from results.json, without measuring')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / 'results.json'
    rows = json.loads(path.read_text())['rows'] if path.exists() else {}
    if not args.from_json:
        benchmark.keep_freed_memory()
        from mmdet.utils import register_all_modules
        register_all_modules(init_default_scope=False)
        for name in args.cases:
            rows[name] = dict(measure(CASES[name], args.rounds), rounds=args.rounds,
                              threads=torch.get_num_threads())
            print(table({name: rows[name]}), flush=True)
            write(args.output, rows)
    write(args.output, rows)


def write(folder: Path, rows: Dict[str, Dict[str, Any]]) -> None:
    """Write the rows and their table, in the order of the cases."""
    rows = {name: rows[name] for name in CASES if name in rows}
    for name, text in {'results.json': json.dumps(dict(rows=rows), indent=1) + '\n',
                       'table.md': table(rows)}.items():
        write_file(folder / name, lambda file, text=text: file.write(text.encode()))


if __name__ == '__main__':
    main()
