"""The paper's tables, the counts of the configs, and the files generated from them."""
import functools
import json
import re

import pytest
import torch
import yaml

from mmrla.commands import paper_tables
from mmrla.paper.comparison import build, compare, last_evaluation
from mmrla.paper.tables import TABLES, TIME_PERCENTAGES, Row, Table
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


def test_biases_in_the_plain_networks_explain_all_but_one_of_the_odd_cells(compared):
    """The note on ResNet-164: a bias in every convolution of the plain network alone."""
    biases = sum(module.out_channels for module in build(CONFIGS / 'pretrain/r164_cifar10.py')
                 .modules() if isinstance(module, torch.nn.Conv2d))
    assert biases == 12_560
    rows = {row['name']: row for row in compared['cifar']}
    for classes, printed in (('C-10', '1.72'), ('C-100', '1.74')):
        plain = rows[f'{classes} ResNet-164']['counts']['parameters'] + biases
        ours = rows[f'{classes} 164 +RLA']['counts']['parameters']
        assert f'{plain / 1e6:.2f}' == printed
        assert f'{(ours - plain) / 1e6:.2f}' == '0.02'


@functools.cache
def operations_of_parameters(config):
    """5 for every weight of a convolution or the classifier, 13 for every channel of a norm."""
    modules = list(build(CONFIGS / f'{config}.py').modules())
    weights = sum(module.weight.numel() for module in modules
                  if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)))
    channels = sum(module.num_features for module in modules
                   if isinstance(module, torch.nn.BatchNorm2d))
    return (5 * weights + 13 * channels) / 1e6


def test_the_flops_of_cifar_are_a_count_of_parameters():
    """The note on FLOPs on CIFAR: all twelve cells, without the size of an image."""
    table = TABLES['cifar']
    for row in table.rows:
        printed = table.printed(row)
        ours = operations_of_parameters(row.config)
        if row.base:
            ours -= operations_of_parameters(row.base)
        figure = printed['ΔFLOPs' if row.base else 'FLOPs']
        assert ours == pytest.approx(float(figure.strip('+M')), abs=0.0055), row.name
    unshared = operations_of_parameters('ablation/rla_r164_unshared_cifar10')
    assert unshared == pytest.approx(9.5, abs=0.05), 'the page says 9.5, the paper 8.74'


def test_claims_of_the_text_about_parameters(compared):
    """Sections 4.1, 4.2 and B.4, in % of the parameters."""
    def parameters(key, name):
        return next(row['counts']['parameters'] for row in compared[key] if row['name'] == name)

    for depth, name in ((50, '+RLA'), (101, '101 +RLA'), (152, '152 +RLA')):
        added = parameters('imagenet', name) / parameters('imagenet', f'ResNet-{depth}') - 1
        assert 100 * added == pytest.approx(1, abs=0.3), 'about 1% more on ImageNet'
    for classes in ('C-10', 'C-100'):
        for plain, ours in (('ResNet-110', '110 +RLA'), ('ResNet-164', '164 +RLA'),
                            ('Xception', 'Xception +RLA')):
            added = (parameters('cifar', f'{classes} {ours}')
                     / parameters('cifar', f'{classes} {plain}') - 1)
            assert 1 < 100 * added < 4.5, 'about 1% to 4% more on CIFAR'
    fewer = [1 - parameters('unshared_imagenet', shared) / parameters('unshared_imagenet', own)
             for shared, own in (('RLA-ResNet-50', '- Unshared variant'),
                                 ('RLA-ResNet-101', '- Unshared variant, 101'))]
    assert [round(100 * share) for share in fewer] == [2, 3]


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


def write_log(folder, lines):
    path = folder / '20260101_000000/vis_data/scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(map(json.dumps, lines)))


def write_test(folder, scalars):
    run = folder / 'test/20260101_000000'
    run.mkdir(parents=True)
    (run / '20260101_000000.json').write_text(json.dumps(scalars))


def test_results_of_runs_are_shown_next_to_the_papers(tmp_path):
    for seed, top1 in ((0, 94.0), (1, 95.0)):
        write_test(tmp_path / f'rla_r164_cifar10/seed_{seed}', {'accuracy/top1': top1})
    rows = compare(TABLES['channels'], CONFIGS, tmp_path)
    assert [row['measured'] for row in rows] == [{}, {'Error': 5.5}, {}, {}]
    text = paper_tables.as_text(TABLES['channels'], rows)
    assert re.search(r'\(k=12\) .* 4\.95 +5\.50$', text, re.MULTILINE)


def test_a_validation_is_never_shown_as_a_test_error(tmp_path):
    """CIFAR's validation images choose the checkpoint; ImageNet's are what the paper reports."""
    lines = [{'loss': 1.0, 'step': 1}, {'accuracy/top1': 90.0, 'accuracy/top5': 99.0, 'step': 1},
             {'accuracy/top1': 93.5, 'accuracy/top5': 99.5, 'step': 2}, {'loss': 0.1, 'step': 3}]
    for name in ('rla_r164_k8_cifar10', 'r110_cifar100', 'densenet100_cifar10', 'r50_imagenet'):
        write_log(tmp_path / name, lines)
    for key in ('channels', 'cifar', 'shared', 'cifar_ablation', 'unshared_cifar'):
        assert TABLES[key].measured_on == 'test'
        assert not any(row['measured'] for row in compare(TABLES[key], CONFIGS, tmp_path)), key
    plain = compare(TABLES['ablation'], CONFIGS, tmp_path)[0]
    assert plain['measured'] == {'Top-1 err.': 6.5, 'Top-5 err.': 0.5}


def test_improvement_flops_and_time_of_the_users_runs(tmp_path):
    for name, top1, seconds in (('r50_imagenet', 75.0, 0.5), ('rla_r50_imagenet', 77.0, 0.6),
                                ('rla_eca_r50_imagenet', 78.0, 0.7)):
        write_log(tmp_path / name, [{'loss': 1.0, 'time': seconds, 'step': 1},
                                    {'accuracy/top1': top1, 'accuracy/top5': 90.0, 'step': 1}])
    rows = {row['name']: row for row in compare(TABLES['imagenet'], CONFIGS, tmp_path)}
    found = rows['+RLA']['deltas']
    assert found['↑Acc1'] == pytest.approx(2.0)
    assert found['training time'] == pytest.approx(1.2)
    assert found['parameters'] == 25_870_696 - 25_557_032
    assert found['flops'] / 2**30 == pytest.approx(4.1704 - 3.8291, abs=1e-3)
    # ECA + RLA is compared with ECA, of which there is no run.
    assert set(rows['+ECA+RLA']['deltas']) == {'parameters', 'flops'}
    assert rows['ResNet-50']['deltas'] == rows['+SE']['deltas'] == {}
    text = paper_tables.as_text(TABLES['imagenet'], list(rows.values()))
    assert re.search(r'^\+RLA .* 1\.87 +\+2\.00 +\+0\.34G +1\.20$', text, re.MULTILINE)


def test_the_papers_percentages_follow_from_its_times():
    """Within the rounding of the printed seconds and milliseconds."""
    printed = {row.name: [float(value) for value in row.figures.split()]
               for row in TABLES['time'].rows}
    train, evaluation = printed['ResNet-50']
    for name, stated in TIME_PERCENTAGES.items():
        assert 100 * (printed[name][0] / train - 1) == pytest.approx(stated['train'], abs=0.5)
        low, high = ((printed[name][1] + half) / (evaluation - half) - 1
                     for half in (-0.005, 0.005))
        assert 100 * low <= stated['evaluation'] <= 100 * high


def test_a_benchmark_stands_beside_the_papers_percentages(tmp_path):
    models = [dict(name=name, times={mode: dict(ratio=[0.9 * ratio, ratio, 1.1 * ratio])
                                     for mode in ('train', 'infer')})
              for name, ratio in (('r50_imagenet', 1.0), ('rla_r50_imagenet', 1.1))]
    (tmp_path / 'time.json').write_text(json.dumps(dict(models=models)))
    rows = compare(TABLES['time'], CONFIGS)
    paper_tables.add_benchmark(rows, tmp_path / 'time.json')
    text = paper_tables.as_text(TABLES['time'], rows)
    assert re.search(r'^\+RLA .* \+26\.0% +\+10\.0% +\+2\.8% +\+10\.0%$', text, re.MULTILINE)
    assert re.search(r'^\+SE .* \+22\.0% +\+0\.2% *$', text, re.MULTILINE)


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
