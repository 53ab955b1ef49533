"""The paper's tables, the counts of the configs, and the files generated from them."""
import json
import re

import pytest
import yaml

from mmrla.commands import paper_tables
from mmrla.paper.comparison import compare, last_evaluation
from mmrla.paper.tables import TABLES, Row, Table
from support import CONFIGS, REPO, load_tool

# Networks of other papers that the tables quote.
QUOTED = {'DenseNet-161 (k=48)', 'DenseNet-264 (k=32)', 'ResNet-200', 'DPN-68', 'DPN-92', 'DPN-98',
          'AOGNet-12M', 'AOGNet-40M', 'HCGNet-B', 'HCGNet-C'}


make_model_zoo = load_tool('dev/make_model_zoo')


@pytest.fixture(scope='module')
def compared():
    """All tables; building the networks takes most of the time of this file."""
    return paper_tables.compare_all(list(TABLES))


def test_every_row_that_is_not_quoted_has_a_config():
    rows = [row for table in TABLES.values() for row in table.rows]
    assert {row.name for row in rows if row.config is None} == QUOTED
    for row in rows:
        if row.config:
            assert (CONFIGS / f'{row.config}.py').is_file(), row
        if row.base:
            assert (CONFIGS / f'{row.base}.py').is_file(), row


def test_a_row_with_too_few_figures_is_named():
    with pytest.raises(ValueError, match='table mine, row ResNet.*must have 2 figures'):
        Table('mine', 'title', ('Params', 'Error'), [Row('ResNet', None, '1.73M')])


def test_imagenet_counts_equal_the_printed_digits(compared):
    different = {(row['name'], column) for key in ('imagenet', 'ablation', 'unshared_imagenet')
                 for row in compared[key] for column, figure in row['figures'].items()
                 if not figure.equal}
    refined = {(f'RLA-{name}-50 †', column) for name in ('ResNet', 'ECANet')
               for column in ('Params', 'FLOPs')}
    assert different == refined | {('152 +ECA', 'Params'), ('MobileNetV2 +SE', 'Params'),
                                   ('MobileNetV2 +SE', 'FLOPs')}


def test_cifar_counts_are_within_their_tolerance(compared):
    for key in ('shared', 'cifar', 'cifar_ablation', 'channels', 'unshared_cifar'):
        assert TABLES[key].tolerance == 0.02
        for row in compared[key]:
            assert row['figures'], row['name']
            for figure in row['figures'].values():
                assert abs(figure.difference) <= 0.02, row


def test_exactly_the_differences_have_a_reason(compared):
    for key, rows in compared.items():
        different = {(name, column) for name, column, _ in paper_tables.differing(rows)}
        assert different == set(TABLES[key].notes), key


def test_a_network_that_differs_from_the_paper_is_noticed(tmp_path):
    (tmp_path / 'other.py').write_text(
        f"_base_ = '{CONFIGS}/pretrain/rla_r50_imagenet.py'\n"
        'model = dict(backbone=dict(rla=dict(channels=36)), neck=dict(channels=36),\n'
        '             head=dict(in_channels=2084))\n')
    table = Table('mine', 'title', ('Params', 'FLOPs'), [Row('+RLA', 'other', '24.67M 4.17G')])
    row, = compare(table, tmp_path)
    assert [figure.equal for figure in row['figures'].values()] == [False, False]
    assert row['figures']['Params'].difference == pytest.approx(0.04, abs=0.02)
    assert 'Reason: not known' in paper_tables.as_text(table, [row])


def test_text_and_markdown_show_figure_count_and_difference(compared):
    some = {key: compared[key] for key in ('imagenet', 'mask')}
    text = paper_tables.render(some, 'text')
    assert re.search(
        r'^\+CBAM +26\.77M +26\.77M +\+0\.003 +3\.84G +3\.84G +\+0\.000 +22\.66 +6\.31',
        text, re.MULTILINE)
    assert re.search(r'^DPN-92 +38\.00M +quoted', text, re.MULTILINE)
    markdown = paper_tables.render(some, 'markdown')
    assert '| 152 +ECA | 57.41M | 57.40M | -0.005 | 10.78G | 10.78G |' in markdown
    assert '| +GC Block | 44.74M |' in markdown
    for form in (text, markdown):
        assert '57.41 needs 442 parameters more' in form
        assert '7 different' in form


def test_json_contains_every_figure(compared):
    loaded = json.loads(paper_tables.render(compared, 'json'))
    assert set(loaded) == set(TABLES)
    row = next(row for row in loaded['ablation']['rows'] if row['name'] == '(d) ConvLSTM')
    assert row['counts']['parameters'] == 26_128_680
    assert row['figures']['FLOPs']['paper'] == row['figures']['FLOPs']['counted'] == '5.00G'
    assert row['paper']['Top-1 err.'] == '22.92'


def test_results_of_runs_are_shown_next_to_the_papers(tmp_path):
    for seed, top1 in ((0, 94.0), (1, 95.0)):
        run = tmp_path / f'rla_r164_cifar10/seed_{seed}/test/20260101_000000'
        run.mkdir(parents=True)
        (run / '20260101_000000.json').write_text(json.dumps({'accuracy/top1': top1}))
    scalars = tmp_path / 'rla_r164_k8_cifar10/20260101_000000/vis_data/scalars.json'
    scalars.parent.mkdir(parents=True)
    lines = [{'loss': 1.0, 'step': 1}, {'accuracy/top1': 90.0, 'step': 1},
             {'accuracy/top1': 93.5, 'step': 2}, {'loss': 0.1, 'step': 3}]
    scalars.write_text('\n'.join(map(json.dumps, lines)))
    rows = compare(TABLES['channels'], CONFIGS, tmp_path)
    assert [row['measured'] for row in rows] == [{'Error': 6.5}, {'Error': 5.5}, {}, {}]
    text = paper_tables.as_text(TABLES['channels'], rows)
    assert re.search(r'\(k=12\) .* 4\.95 +5\.50$', text, re.MULTILINE)


def test_a_run_without_an_evaluation_has_no_results(tmp_path):
    assert last_evaluation(tmp_path / 'missing') == {}


@pytest.mark.parametrize('name', ['docs/model_zoo.md', 'configs/metafile.yml', 'model-index.yml'])
def test_generated_files_are_up_to_date(name, compared, monkeypatch):
    monkeypatch.setattr(make_model_zoo, 'compare_all', lambda keys: compared)
    assert (REPO / name).read_text() == make_model_zoo.generate()[REPO / name], \
        f'{name} is out of date: run python tools/dev/make_model_zoo.py'


def test_mim_can_read_the_model_index():
    index = yaml.safe_load((REPO / 'model-index.yml').read_text())
    content = yaml.safe_load((REPO / index['Import'][0]).read_text())
    models = {model['Name']: model for model in content['Models']}
    assert len(models) == len(content['Models'])
    assert all((REPO / model['Config']).is_file() for model in models.values())
    reported = models['mask_rcnn_rla_r50_fpn_1x']
    assert [result['Task'] for result in reported['Results']] == [
        'Object Detection', 'Instance Segmentation']
    assert reported['Results'][1]['Metrics']['APm (paper)'] == 35.6
    assert models['rla_r50_imagenet']['Metadata']['Parameters'] == 25_870_696
