"""The commands that draw figures of a network."""
import cv2
import numpy as np
import pytest
import torch

from mmrla.commands import look_inside, plot_shared_weights
from mmrla.models import CifarDenseNet, RLAResNet
from mmrla.paper.figures import shared_weight_norms

RESNET = "type='RLAResNet', depth=18, base_channels=8, rla="


def save(folder, name, backbone, config):
    """Write a config and a checkpoint of a backbone, and return their paths."""
    torch.save(dict(state_dict={f'backbone.{key}': value for key, value
                                in backbone.state_dict().items()}), folder / f'{name}.pth')
    (folder / f'{name}.py').write_text(f'model = dict(backbone=dict({config}))\n')
    return str(folder / f'{name}.py'), str(folder / f'{name}.pth')


@pytest.mark.parametrize('sharing', ['lag', 'ordinal'])
def test_figure_2_is_drawn_from_a_checkpoint(sharing, tmp_path, randomise, capsys):
    net = randomise(CifarDenseNet(28, growth=4, sharing=sharing))
    config, checkpoint = save(tmp_path, 'net', net, "type='CifarDenseNet', depth=28, growth=4, "
                              f'sharing={sharing!r}')
    plot_shared_weights.main([config, checkpoint, str(tmp_path / 'out/figure.png')])
    output = capsys.readouterr().out
    first = ' '.join(f'{value:.1f}' for value in shared_weight_norms(net)[0])
    assert f'L1 norms: {first}' in output
    assert output.count('R squared') == 3
    assert cv2.imread(str(tmp_path / 'out/figure.png')).shape[0] > 200
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['figure.png']


@pytest.fixture
def image(tmp_path):
    path = tmp_path / 'image.png'
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (65, 97, 3), np.uint8))
    return str(path)


def test_look_inside_draws_one_picture(tmp_path, randomise, image):
    rla = save(tmp_path, 'rla', randomise(RLAResNet(18, base_channels=8, rla=dict(channels=4))),
               RESNET + 'dict(channels=4)')
    plain = save(tmp_path, 'plain', randomise(RLAResNet(18, base_channels=8, rla=None)),
                 RESNET + 'None')
    for name, options in (('alone', ()), ('compared', ('--plain', *plain))):
        look_inside.main([*rla, image, str(tmp_path / f'{name}.png'), *options])
    alone, compared = (cv2.imread(str(tmp_path / f'{name}.png')) for name in ('alone', 'compared'))
    assert alone.shape == compared.shape
    assert (alone != compared).any(), 'the network of --plain makes no difference'


def test_look_inside_needs_a_network_with_a_hidden_state(tmp_path, image):
    plain = save(tmp_path, 'plain', RLAResNet(18, base_channels=8, rla=None), RESNET + 'None')
    with pytest.raises(SystemExit, match='has no hidden state'):
        look_inside.main([*plain, image, str(tmp_path / 'none.png')])
    assert not (tmp_path / 'none.png').exists()


def test_weights_of_another_network_are_refused(tmp_path, randomise, image):
    config, _ = save(tmp_path, 'rla', randomise(RLAResNet(18, base_channels=8)),
                     RESNET + 'dict(channels=4)')
    _, checkpoint = save(tmp_path, 'plain', RLAResNet(18, base_channels=8, rla=None), '')
    with pytest.raises(SystemExit, match='plain.pth does not fit'):
        look_inside.main([config, checkpoint, image, str(tmp_path / 'out.png')])


def test_a_missing_image_is_named(tmp_path):
    plain = save(tmp_path, 'plain', RLAResNet(18, base_channels=8, rla=None), RESNET + 'None')
    with pytest.raises(SystemExit, match='none.png does not exist'):
        look_inside.main([*plain, str(tmp_path / 'none.png'), str(tmp_path / 'out.png')])
