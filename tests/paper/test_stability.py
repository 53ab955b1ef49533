"""tools/dev/check_stability.py: what it calls a spike, and the parts of a network."""
import json

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from support import CONFIGS, REPO, load_tool

tool = load_tool('dev/check_stability')


def run(loss, total):
    return dict(loss=loss, norms=dict(all=total))


FALLING = [3 - 0.02 * step for step in range(60)]


@pytest.mark.parametrize('loss, total, stable', [
    (FALLING, [1.0] * 60, True),
    (FALLING, [1.0] * 50 + [11.0] + [1.0] * 9, False),
    (FALLING, [1.0] * 50 + [9.0] + [1.0] * 9, True),
    (FALLING[:30] + [5.0] + FALLING[31:], [1.0] * 60, False),
    (FALLING[::-1], [1.0] * 60, False),
    (FALLING[:-1] + [float('nan')], [1.0] * 60, False)])
def test_a_loss_must_fall_without_a_spike(loss, total, stable):
    assert tool.is_stable(tool.verdict(run(loss, total))) == stable


def test_the_largest_spike_of_a_part_is_found():
    part = [0.0] * 20 + [2.0] * 25 + [6.0] + [2.0] * 14  # no median before the first values
    found = tool.verdict(dict(loss=FALLING, norms=dict(layer1=part, all=[4.0] * 60)))
    assert (found['largest_spike'], found['largest_part_spike']) == (1.0, 3.0)


@pytest.mark.parametrize('name, hidden', [
    ('rla_r50_imagenet', {'readers', 'compress', 'norms', 'recurrent'}),
    ('rla_mbv2_imagenet', {'readers', 'compress', 'norms', 'recurrent'})])
def test_every_part_of_the_network_is_shown(name, hidden):
    cfg = Config.fromfile(CONFIGS / f'pretrain/{name}.py')
    with torch.device('meta'):
        backbone = MODELS.build(cfg.model.backbone)
    parts = {tool.part_of(f'backbone.{key}') for key, _ in backbone.named_parameters()}
    assert {f'hidden path: {part}' for part in hidden} <= parts
    assert {'stem and last convolution', 'layer1', 'layer4'} <= parts
    assert tool.part_of('head.fc.weight') == 'neck and head'


RESULTS = sorted((REPO / 'docs/evidence').glob('stability*.json'))


@pytest.mark.parametrize('path', RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_the_figures_of_a_results_file(path):
    """docs/evidence.md has the settings, the plot and a row for each run of the file."""
    page = (REPO / 'docs/evidence.md').read_text()
    results = json.loads(path.read_text())
    settings = results['settings']
    assert path.with_suffix('.png').is_file()
    assert f'](evidence/{path.stem}.png)' in page
    assert (f'--output docs/evidence/{path.stem} --size {settings["size"]} '
            f'--batch {settings["batch"]} --steps {settings["steps"]}'
            + (' --scale-lr' if settings['scale_lr'] else '')) in page
    for run in results['runs']:
        found = tool.verdict(run)
        assert (f'| {run["config"]} | {run["lr"]:g} | {found["first"]:.2f}, {found["last"]:.2f} | '
                f'{found["largest_loss"]:.1f} | {found["largest_spike"]:.1f} | '
                f'{found["largest_part_spike"]:.1f} | '
                f'{"yes" if tool.is_stable(found) else "no"} |') in page


def test_the_recipe_is_stable_with_its_scaled_learning_rate():
    results = json.loads((REPO / 'docs/evidence/stability.json').read_text())
    assert results['settings']['scale_lr']
    assert {run['config'] for run in results['runs']} >= {'rla_mbv2_imagenet', 'mbv2_imagenet'}
    for run in results['runs']:
        found = tool.verdict(run)
        assert tool.is_stable(found), run['config']
        assert found['largest_part_spike'] < tool.SPIKE, run['config']
