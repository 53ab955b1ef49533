"""Write docs/model_zoo.md, configs/metafile.yml and model-index.yml.

    python tools/dev/make_model_zoo.py            # write them
    python tools/dev/make_model_zoo.py --check    # list the files that are out of date

All three files are generated from mmrla/paper/tables.py, mmrla/weights/authors.py and
the configs, like the tables of tools/paper_tables.py.
"""
import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import yaml

from mmrla.commands.logs import silence_logs
from mmrla.commands.paper_tables import Rows, as_markdown, compare_all, summary
from mmrla.commands.paths import REPO
from mmrla.paper.comparison import METRICS
from mmrla.paper.tables import TABLES
from mmrla.weights.authors import AUTHORS_FILES, AuthorsFile
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
results of your own runs.

**The published network is v3.** As far as the authors' code shows, the paper's figures of RLA on
ResNets were computed by v3: their code adds the shortcut to y in place, so that the hidden state
is updated from the block's output x' instead of y. The rows of the tables link to the configs of
the paper's equation (v1), which has the same number of parameters and FLOPs. The authors' weights
need the v3 configs [below](#weights-of-the-authors). Their MobileNetV2 does not add in place; it
is v1.

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
WEIGHTS = """\
## Weights of the authors

The name works wherever a checkpoint is named: `tools/test.py CONFIG NAME`, `--pretrained NAME`,
`load_from`. The figures are those of the authors' README, with the paper's figure if it differs.
They were not measured here. The detectors of the v3 configs start from the ImageNet weights in this
table. The authors started from `resnet50_rla_2295`, which is not published.
"""
# The columns of the paper that correspond to the figures of a published file.
COLUMNS = dict(
    pretrain=('Top-1 err.', 'Top-5 err.'), mask_rcnn=('APbb', 'APbb50', 'APbb75'),
    faster_rcnn=('AP', 'AP50', 'AP75'), retinanet=('AP', 'AP50', 'AP75'))


def config_paths() -> List[str]:
    """Return the paths of all model configs below configs/, without the suffix."""
    found = [path for pattern in ('*.py', 'pretrain/*.py', 'ablation/*.py')
             for path in sorted((REPO / 'configs').glob(pattern))]
    return [str(path.relative_to(REPO / 'configs').with_suffix('')) for path in found]


def config_of(file: AuthorsFile) -> str:
    """Return the config of a published file: path below configs/ without the suffix."""
    eca = 'eca_' if 'eca' in file.name else ''
    if 'mobilenet' in file.name:
        return f'pretrain/rla_{eca}mbv2_imagenet'
    if file.task == 'ImageNet':
        depth = re.search(r'50|101', file.name)[0]
        return f'pretrain/rla_v3_{eca}r{depth}_imagenet'
    detector, depth = re.match(r'(\w+)_r(50|101)rla', file.name).groups()
    return f'{detector}_rla_v3_{eca}r{depth}_fpn_1x'


def in_paper(config: str) -> str:
    """Return the config that the paper's tables name for the network of a config."""
    return config.replace('rla_v3_', 'rla_')


def stated_figures(config: str, file: AuthorsFile) -> Dict[str, float]:
    """Return the figures of the authors' README by the paper's columns."""
    columns = next(columns for part, columns in COLUMNS.items() if config.startswith(part))
    return dict(zip(columns, file.figures.values(), strict=True))


def rows_by_config(compared: Dict[str, Rows]) -> Dict[str, Rows]:
    """Return the rows of all tables by the config that they name."""
    rows_of: Dict[str, Rows] = {}
    for rows in compared.values():
        for row in rows:
            rows_of.setdefault(row['config'], []).append(row)
    return rows_of


def weights_table(rows_of: Dict[str, Rows]) -> str:
    """Return the section of the authors' weights."""
    lines = ['| Weights | Config | Figures |', '|---|---|---|']
    for file in AUTHORS_FILES.values():
        config = config_of(file)
        paper = rows_of[in_paper(config)][0]['paper']
        cells = [f'{column} {value:.{len(paper[column].partition(".")[2])}f}'
                 + (f' (paper: {paper[column]})' if float(paper[column]) != value else '')
                 for column, value in stated_figures(config, file).items()]
        lines.append(f'| `authors://{file.name}` | [{config}](../configs/{config}.py) '
                     f'| {", ".join(cells)} |')
    return WEIGHTS + '\n' + '\n'.join(lines) + '\n'


def model_zoo(compared: Dict[str, Rows]) -> str:
    """Return the content of docs/model_zoo.md."""
    parts = [INTRODUCTION.format(generated=GENERATED, summary=summary(compared))]
    parts += [as_markdown(TABLES[key], rows, link='../configs') for key, rows in compared.items()]
    parts.append(weights_table(rows_by_config(compared)))
    in_tables = {row['config'] for rows in compared.values() for row in rows}
    with_weights = set(map(config_of, AUTHORS_FILES.values()))
    others = [path for path in config_paths() if path not in in_tables | with_weights]
    parts.append('## Configs that are in no table\n\n' + '\n'.join(
        f'- [{path}](../configs/{path}.py)' for path in others) + '\n')
    return '\n'.join(parts)


def results(config: str, figures: Dict[str, float], source: str) -> Iterator[Dict[str, Any]]:
    """Yield results of a model in the format of a model index.

    Args:
        config: Path below configs/ without the suffix.
        figures: The figures by the paper's columns.
        source: Who states the figures.
    """
    dataset = next(name for part, name in (
        ('_cifar100', 'CIFAR-100'), ('_cifar', 'CIFAR-10'), ('_imagenet', 'ImageNet-1k'),
        ('_fpn', 'COCO')) if part in config)
    for task, prefix in (('Image Classification', 'accuracy'), ('Object Detection', 'coco/bbox'),
                         ('Instance Segmentation', 'coco/segm')):
        metrics = {f'{column} ({source})': figure for column, figure in figures.items()
                   if METRICS.get(column, ('',))[0].startswith(prefix)}
        if metrics:
            yield dict(Task=task, Dataset=dataset, Metrics=metrics)


def results_of_paper(config: str, rows: Rows) -> List[Dict[str, Any]]:
    """Return the results in the first table that states any for the network of a config."""
    for row in rows:
        figures = {column: float(figure.split('±')[0]) for column, figure in row['paper'].items()
                   if column in METRICS}
        if figures:
            return list(results(config, figures, 'paper'))
    return []


def model_entry(config: str, rows: Rows, file: Optional[AuthorsFile]) -> Dict[str, Any]:
    """Return the entry of a config in configs/metafile.yml.

    Args:
        config: Path below configs/ without the suffix.
        rows: The rows of the tables that name the network of this config.
        file: The authors' weights for this config.
    """
    entry: Dict[str, Any] = {'Name': Path(config).name, 'In Collection': 'RLA',
                             'Config': f'configs/{config}.py'}
    if rows:
        counts = rows[0]['counts']
        entry['Metadata'] = dict(Parameters=counts['parameters'], FLOPs=counts['flops'])
    reported = results_of_paper(config, rows)
    if file is not None:
        entry['Weights'] = file.url
        reported += results(config, stated_figures(config, file), 'authors')
    if reported:
        entry['Results'] = reported
    return entry


def metafile(compared: Dict[str, Rows]) -> str:
    """Return the content of configs/metafile.yml, which mim reads."""
    rows_of = rows_by_config(compared)
    files = {config_of(file): file for file in AUTHORS_FILES.values()}
    architecture = ['Recurrent Layer Aggregation', 'ResNet', 'FPN']
    content = dict(
        Collections=[dict(Name='RLA', Metadata=dict(Architecture=architecture), Paper=PAPER,
                          README='docs/model_zoo.md')],
        Models=[model_entry(config, rows_of.get(in_paper(config), []), files.get(config))
                for config in config_paths()])
    head = (f'# {GENERATED}\n# Figures marked (paper) are quoted from the paper, figures marked '
            '(authors) from the README of the\n# authors, which links the weights. As far as their '
            'code shows, those of RLA on ResNets were computed by v3.\n')
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
