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


def test_the_page_shows_the_figures_of_the_results_file():
    """docs/evidence.md has a row for each run of docs/evidence/stability.json."""
    page = (REPO / 'docs/evidence.md').read_text()
    for run in json.loads((REPO / 'docs/evidence/stability.json').read_text())['runs']:
        found = tool.verdict(run)
        assert (f'| {run["config"]} | {run["lr"]} | {found["first"]:.2f}, {found["last"]:.2f} | '
                f'{found["largest_loss"]:.1f} | {found["largest_spike"]:.1f} |') in page
        if not tool.is_stable(found):
            peak = max(run['loss'])
            assert f'rises to {peak:.1f} at step {run["loss"].index(peak)} ' in page
