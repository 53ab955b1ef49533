"""Print the paper's tables with the parameters and FLOPs counted for each config.

    python tools/paper_tables.py                              # all tables, as text
    python tools/paper_tables.py --tables imagenet ablation --format markdown
    python tools/paper_tables.py --format json --output tables.json
    python tools/paper_tables.py --work-dir work_dirs         # with the results of your runs
    python tools/paper_tables.py --tables time --benchmark time.json   # tools/benchmark.py --json

Each network is built from its config, and its parameters and FLOPs are counted by
the paper's rules (mmrla/paper/counts.py). Accuracies are quoted from the paper; with
--work-dir the accuracies of your own runs are shown next to them. For CIFAR only
results of tools/test.py are shown, because the paper reports test errors there. If
there are runs of the same network with and without RLA, the measured improvement, the
added FLOPs and the ratio of the training times are shown too. Counts that differ from
the paper are listed with the reason. The exit code is 1 if the reason of a difference
is not known.
"""
import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mmrla.paper.comparison import Figure, compare
from mmrla.paper.counts import GIGA, MEGA
from mmrla.paper.tables import TABLES, TIME_PERCENTAGES, Table
from mmrla.weights.writing import write_file

from .logs import silence_logs
from .paths import CONFIGS

Rows = List[Dict[str, Any]]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        description='Print the paper\'s tables with the counts of the configs.')
    parser.add_argument('--tables', nargs='+', choices=TABLES, default=list(TABLES),
                        help='tables to print; default: all')
    parser.add_argument('--format', choices=('text', 'markdown', 'json'), default='text',
                        help='output format')
    parser.add_argument('--output', type=Path, help='write to this file instead of the terminal')
    parser.add_argument('--work-dir', type=Path,
                        help='folder of your runs, with one subfolder per config')
    parser.add_argument('--benchmark', type=Path, metavar='JSON',
                        help='file of tools/benchmark.py --json, for the table "time"')
    return parser


def columns_of(table: Table, rows: Rows) -> List[Tuple[str, Any]]:
    """Return the columns to show: a heading, and a function from a row to its cell."""
    columns = [('Model', lambda row: row['name'])]
    if not set(table.columns) & set(table.counted):
        columns += [('Params, counted', lambda row: f'{row["counts"]["parameters"] / MEGA:.2f}M'),
                    ('FLOPs, counted', lambda row: f'{row["counts"]["flops"] / GIGA:.2f}G')]
    for column in table.columns:
        columns.append((column, lambda row, column=column: row['paper'].get(column, '')))
        if column in table.counted:
            columns += [
                ('counted', lambda row, column=column: counted_cell(row, column)),
                ('difference', lambda row, column=column: difference_cell(row, column))]
        elif any(column in row['measured'] for row in rows):
            columns.append(
                ('measured', lambda row, column=column: measured_cell(row, column)))
        elif any(column in row['deltas'] for row in rows):
            columns.append(('measured', lambda row, column=column: delta_cell(row, column)))
    if any('training time' in row['deltas'] for row in rows):
        columns += [('ΔFLOPs, counted', added_flops),
                    ('time, measured', lambda row: delta_cell(row, 'training time', '.2f'))]
    if any('benchmark' in row for row in rows):
        columns += [(f'{mode}, {source}', lambda row, key=key, source=source:
                     percentage(row.get(source, {}).get(key)))
                    for mode, key in (('train', 'train'), ('evaluation', 'evaluation'))
                    for source in ('text', 'benchmark')]
    return columns


def delta_cell(row: Dict[str, Any], name: str, form: str = '+.2f') -> str:
    """Return a difference to the network without RLA."""
    return format(row['deltas'][name], form) if name in row['deltas'] else ''


def added_flops(row: Dict[str, Any]) -> str:
    """Return the FLOPs that RLA adds."""
    return f'{row["deltas"]["flops"] / GIGA:+.2f}G' if 'flops' in row['deltas'] else ''


def percentage(value: Optional[float]) -> str:
    """Return a percentage with its sign, or an empty cell."""
    return '' if value is None else f'{value:+.1f}%'


def add_benchmark(rows: Rows, path: Path) -> None:
    """Add the measured times and the percentages of the paper's text to the rows.

    Args:
        rows: The rows of the table "time".
        path: The file that ``tools/benchmark.py --json`` wrote for the table's configs.
    """
    if not path.is_file():
        raise SystemExit(f'--benchmark {path} does not exist; write it with '
                         'tools/benchmark.py --json')
    models = {model['name']: model['times'] for model in json.loads(path.read_text())['models']}
    plain = models.get(Path(rows[0]['config']).name)
    if plain is None:
        raise SystemExit(f'{path} does not contain {Path(rows[0]["config"]).name}; add this '
                         'config to the configs of tools/benchmark.py')
    for row in rows:
        row['text'] = TIME_PERCENTAGES.get(row['name'], {})
        times = models.get(Path(row['config']).name, {})
        row['benchmark'] = {
            key: 100 * (times[mode]['ratio'][1] / plain[mode]['ratio'][1] - 1)
            for key, mode in (('train', 'train'), ('evaluation', 'infer'))
            if mode in times and row is not rows[0]}


def counted_cell(row: Dict[str, Any], column: str) -> str:
    """Return the count, ``quoted`` for a network of another paper."""
    if row['config'] is None:
        return 'quoted'
    figure = row['figures'].get(column)
    return figure.counted if figure else ''


def difference_cell(row: Dict[str, Any], column: str) -> str:
    """Return the difference between the count and the printed figure."""
    figure = row['figures'].get(column)
    return f'{figure.difference:+.3f}' if figure else ''


def measured_cell(row: Dict[str, Any], column: str) -> str:
    """Return the result of the user's runs."""
    return f'{row["measured"][column]:.2f}' if column in row['measured'] else ''


def differing(rows: Rows) -> List[Tuple[str, str, Figure]]:
    """Return the counts that differ from the printed digits: row, column, figure."""
    return [(row['name'], column, figure) for row in rows
            for column, figure in row['figures'].items() if not figure.equal]


def remarks(table: Table, rows: Rows) -> List[str]:
    """Return one sentence per reason for a difference."""
    by_reason: Dict[str, List[str]] = {}
    for name, column, figure in differing(rows):
        allowed = f' (within {table.tolerance}M)' if figure.within else ''
        by_reason.setdefault(figure.note or 'not known', []).append(
            f'{name}: {column} {figure.paper}, counted {figure.counted}{allowed}')
    return [f'{"; ".join(cases)}. Reason: {reason}.' for reason, cases in by_reason.items()]


def as_text(table: Table, rows: Rows) -> str:
    """Format a table as text with aligned columns."""
    columns = columns_of(table, rows)
    cells = [[heading for heading, _ in columns]]
    cells += [[cell(row) for _, cell in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ['  '.join(cell.ljust(width) if i == 0 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
             for line in cells]
    return '\n'.join([table.title, '', *lines, *(f'  * {line}' for line in remarks(table, rows))])


def as_markdown(table: Table, rows: Rows, link: str = '') -> str:
    """Format a table in Markdown.

    Args:
        table: The table.
        rows: The rows that :func:`mmrla.paper.comparison.compare` returns.
        link: Relative path of the folder of configs; names link to their configs.
    """
    columns = columns_of(table, rows)
    lines = ['| ' + ' | '.join(heading for heading, _ in columns) + ' |',
             '|' + '---|' * len(columns)]
    for row in rows:
        cells = [cell(row) for _, cell in columns]
        if link and row['config']:
            cells[0] = f'[{cells[0]}]({link}/{row["config"]}.py)'
        lines.append('| ' + ' | '.join(cells) + ' |')
    lines += ['', *(f'- {line}' for line in remarks(table, rows))]
    return '\n'.join([f'## {table.title}', '', *lines]).rstrip() + '\n'


def as_json(compared: Dict[str, Rows]) -> str:
    """Format all tables as JSON, each figure with its count."""
    plain = {key: dict(title=TABLES[key].title, rows=[
        dict(row, figures={name: asdict(figure) for name, figure in row['figures'].items()})
        for row in rows]) for key, rows in compared.items()}
    return json.dumps(plain, indent=2, ensure_ascii=False) + '\n'


def summary(compared: Dict[str, Rows]) -> str:
    """Return how many counts agree with the paper."""
    figures = [figure for rows in compared.values() for row in rows
               for figure in row['figures'].values()]
    equal = sum(figure.equal for figure in figures)
    within = sum(figure.within for figure in figures) - equal
    return (f'{len(figures)} printed counts: {equal} equal to the last digit, {within} within '
            f'the tolerance, {len(figures) - equal - within} different')


def compare_all(keys: Sequence[str], work_dir: Optional[Path] = None) -> Dict[str, Rows]:
    """Compare tables, given by key, with the counts."""
    return {key: compare(TABLES[key], CONFIGS, work_dir) for key in keys}


def render(compared: Dict[str, Rows], form: str) -> str:
    """Format all tables."""
    if form == 'json':
        return as_json(compared)
    one = as_markdown if form == 'markdown' else as_text
    parts = [one(TABLES[key], rows) for key, rows in compared.items()]
    return '\n\n'.join([*parts, summary(compared)]) + '\n'


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if args.work_dir and not args.work_dir.is_dir():
        raise SystemExit(f'--work-dir {args.work_dir} is not a folder')
    silence_logs()
    compared = compare_all(args.tables, args.work_dir)
    if args.benchmark:
        if 'time' not in compared:
            raise SystemExit('--benchmark applies to the table "time"; add time to --tables')
        add_benchmark(compared['time'], args.benchmark)
    text = render(compared, args.format)
    if args.output:
        write_file(args.output, lambda file: file.write(text.encode()))
    else:
        print(text, end='')
    unexplained = [figure for rows in compared.values() for *_, figure in differing(rows)
                   if not figure.note]
    sys.exit(bool(unexplained))


if __name__ == '__main__':
    main()
