"""Write docs/model_zoo.md, configs/metafile.yml and model-index.yml.

    python tools/dev/make_model_zoo.py            # write them
    python tools/dev/make_model_zoo.py --check    # say which are out of date

All three come from mmrla/paper.py and from the configs, as the tables of
tools/paper_tables.py do.
"""
import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import yaml

from mmrla.commands.common import silence
from mmrla.commands.paper_tables import REPO, Rows, as_markdown, compare_all, summary
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

The paper's tables beside what the networks of `configs/` count. **Accuracies are the paper's**, not
measured here; `python tools/paper_tables.py --work-dir work_dirs` sets those of your own runs
beside them. There are no weights to download yet.

"Params" and "FLOPs" are what the paper prints, "counted" is what the config's network has, with as
many digits, and "difference" the unrounded count minus the printed figure.

{summary}.

- On ImageNet M is 2^20 and G is 2^30. FLOPs are for one image of 224 x 224: multiply-adds of
  convolutions and linear layers, two for each input element of a batch norm, and the elements of
  average poolings.
- On CIFAR M is 10^6. Table 1 counts the moving statistics of the norms too, as Keras does; the
  other tables do not. Their FLOPs are quoted: they are about five times the parameters, not
  multiply-adds.
- A detector's FLOPs are those of its backbone and neck for an image of 800 x 1344; a non-local
  block's products of pixels with pixels are left out, as the count above does.
- † is the recipe and architecture of appendix B.2.2. "quoted" rows are other papers' networks,
  which are not built.
"""


def config_paths() -> List[str]:
    """The configs of models, below configs/ and without suffix."""
    found = [path for pattern in ('*.py', 'pretrain/*.py', 'ablation/*.py')
             for path in sorted((REPO / 'configs').glob(pattern))]
    return [str(path.relative_to(REPO / 'configs').with_suffix('')) for path in found]


def model_zoo(compared: Dict[str, Rows]) -> str:
    """docs/model_zoo.md."""
    parts = [INTRODUCTION.format(generated=GENERATED, summary=summary(compared))]
    parts += [as_markdown(TABLES[key], rows, link='../configs') for key, rows in compared.items()]
    in_tables = {row['config'] for rows in compared.values() for row in rows}
    others = [path for path in config_paths() if path not in in_tables]
    parts.append('## Configs of no table\n\n' + '\n'.join(
        f'- [{path}](../configs/{path}.py)' for path in others) + '\n')
    return '\n'.join(parts)


def results(config: str, row: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """What the paper reports of a model, in the form of a model index."""
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
    """A model of configs/metafile.yml; ``rows`` are those of its config."""
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
    """configs/metafile.yml, what mim finds."""
    rows_of: Dict[str, List[Dict[str, Any]]] = {}
    for rows in compared.values():
        for row in rows:
            rows_of.setdefault(row['config'], []).append(row)
    architecture = ['Recurrent Layer Aggregation', 'ResNet', 'FPN']
    content = dict(
        Collections=[dict(Name='RLA', Metadata=dict(Architecture=architecture), Paper=PAPER,
                          README='docs/model_zoo.md')],
        Models=[model_entry(config, rows_of.get(config, [])) for config in config_paths()])
    head = f'# {GENERATED}\n# Figures marked (paper) are the paper\'s; there are no weights yet.\n'
    return head + yaml.safe_dump(content, sort_keys=False, width=100)


def generate() -> Dict[Path, str]:
    """The files and what belongs into them."""
    compared = compare_all(list(TABLES))
    return {
        REPO / 'docs/model_zoo.md': model_zoo(compared),
        REPO / 'configs/metafile.yml': metafile(compared),
        REPO / 'model-index.yml': f'# {GENERATED}\nImport:\n  - configs/metafile.yml\n',
    }


def main() -> None:
    parser = argparse.ArgumentParser(description='Write the model zoo and the model index.')
    parser.add_argument('--check', action='store_true', help='write nothing, say what is stale')
    args = parser.parse_args()
    silence()
    stale = [(path, text) for path, text in generate().items()
             if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if not args.check:
            write_file(path, lambda file, text=text: file.write(text.encode()))
        print(f'{path.relative_to(REPO)} {"is out of date" if args.check else "written"}')
    sys.exit(bool(args.check and stale))


if __name__ == '__main__':
    main()
