"""Write docs/model_zoo.md, configs/metafile.yml and model-index.yml.

    python tools/dev/make_model_zoo.py            # write them
    python tools/dev/make_model_zoo.py --check    # list the files that are out of date

All three files are generated from mmrla/paper/tables.py and the configs, like the
tables of tools/paper_tables.py.
"""
import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import yaml

from mmrla.commands.logs import silence_logs
from mmrla.commands.paper_tables import Rows, as_markdown, compare_all, summary
from mmrla.commands.paths import REPO
from mmrla.paper.comparison import METRICS
from mmrla.paper.tables import TABLES
from mmrla.weights.writing import write_file

GENERATED = 'Written by tools/dev/make_model_zoo.py; do not edit.'
PAPER = dict(
    Title='Recurrence along Depth: Deep Convolutional Neural Networks with Recurrent Layer '
          'Aggregation',
    URL='https://arxiv.org/abs/2110.11852')
INTRODUCTION = """\
# Model zoo

<!-- {generated} -->

The paper's tables with counts of the networks in `configs/`. **The accuracies are quoted from the
paper**; they were not measured here. `python tools/paper_tables.py --work-dir work_dirs` adds the
results of your own runs. There are no weights to download yet.

"Params" and "FLOPs" are the printed figures. "counted" is the count for the config with the same
number of digits, and "difference" is the unrounded count minus the printed figure.

{summary}.

- On ImageNet, M is 2^20 and G is 2^30. FLOPs are counted for one image of 224 x 224: multiply-adds
  of convolutions and linear layers, two operations per input element of a batch norm, and the
  elements of average poolings.
- On CIFAR, M is 10^6. Table 1 includes the running statistics of the norms, as Keras does; the
  other tables do not. The FLOPs are quoted only: they are about five times the number of
  parameters, not multiply-adds.
- The FLOPs of a detector are those of its backbone and neck for an image of 800 x 1344. The
  pixel-by-pixel products of a non-local block are not included.
- † marks the recipe and architecture of appendix B.2.2. "quoted" marks networks of other papers,
  which are not built here.
"""


def config_paths() -> List[str]:
    """Return the paths of all model configs below configs/, without the suffix."""
    found = [path for pattern in ('*.py', 'pretrain/*.py', 'ablation/*.py')
             for path in sorted((REPO / 'configs').glob(pattern))]
    return [str(path.relative_to(REPO / 'configs').with_suffix('')) for path in found]


def model_zoo(compared: Dict[str, Rows]) -> str:
    """Return the content of docs/model_zoo.md."""
    parts = [INTRODUCTION.format(generated=GENERATED, summary=summary(compared))]
    parts += [as_markdown(TABLES[key], rows, link='../configs') for key, rows in compared.items()]
    in_tables = {row['config'] for rows in compared.values() for row in rows}
    others = [path for path in config_paths() if path not in in_tables]
    parts.append('## Configs that are in no table\n\n' + '\n'.join(
        f'- [{path}](../configs/{path}.py)' for path in others) + '\n')
    return '\n'.join(parts)


def results(config: str, row: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the results of a model in the paper, in the format of a model index."""
    dataset = next(name for part, name in (
        ('_cifar100', 'CIFAR-100'), ('_cifar', 'CIFAR-10'), ('_imagenet', 'ImageNet-1k'),
        ('_fpn', 'COCO')) if part in config)
    for task, prefix in (('Image Classification', 'accuracy'), ('Object Detection', 'coco/bbox'),
                         ('Instance Segmentation', 'coco/segm')):
        metrics = {f'{column} (paper)': float(figure.split('±')[0])
                   for column, figure in row['paper'].items()
                   if METRICS.get(column, ('',))[0].startswith(prefix)}
        if metrics:
            yield dict(Task=task, Dataset=dataset, Metrics=metrics)


def model_entry(config: str, rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the entry of a config in configs/metafile.yml.

    Args:
        config: Path below configs/ without the suffix.
        rows: The rows of the tables that name this config.
    """
    entry: Dict[str, Any] = {'Name': Path(config).name, 'In Collection': 'RLA',
                             'Config': f'configs/{config}.py'}
    if rows:
        counts = rows[0]['counts']
        entry['Metadata'] = dict(Parameters=counts['parameters'], FLOPs=counts['flops'])
        reported = next((found for found in (list(results(config, row)) for row in rows)
                         if found), [])
        if reported:
            entry['Results'] = reported
    return entry


def metafile(compared: Dict[str, Rows]) -> str:
    """Return the content of configs/metafile.yml, which mim reads."""
    rows_of: Dict[str, List[Dict[str, Any]]] = {}
    for rows in compared.values():
        for row in rows:
            rows_of.setdefault(row['config'], []).append(row)
    architecture = ['Recurrent Layer Aggregation', 'ResNet', 'FPN']
    content = dict(
        Collections=[dict(Name='RLA', Metadata=dict(Architecture=architecture), Paper=PAPER,
                          README='docs/model_zoo.md')],
        Models=[model_entry(config, rows_of.get(config, [])) for config in config_paths()])
    head = (f'# {GENERATED}\n# Figures marked (paper) are quoted from the paper; there are no '
            'weights yet.\n')
    return head + yaml.safe_dump(content, sort_keys=False, width=100)


def generate() -> Dict[Path, str]:
    """Return the content of each generated file."""
    compared = compare_all(list(TABLES))
    return {
        REPO / 'docs/model_zoo.md': model_zoo(compared),
        REPO / 'configs/metafile.yml': metafile(compared),
        REPO / 'model-index.yml': f'# {GENERATED}\nImport:\n  - configs/metafile.yml\n',
    }


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Write the model zoo and the model index.')
    parser.add_argument('--check', action='store_true',
                        help='list the files that are out of date without writing them')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    silence_logs()
    stale = [(path, text) for path, text in generate().items()
             if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if not args.check:
            write_file(path, lambda file, text=text: file.write(text.encode()))
        print(f'{path.relative_to(REPO)} {"is out of date" if args.check else "written"}')
    sys.exit(bool(args.check and stale))


if __name__ == '__main__':
    main()
