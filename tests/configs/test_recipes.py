"""Every recipe of the paper against the configs, and the data pipelines on files."""
import functools
import hashlib
import json
import logging
import math
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, PARAM_SCHEDULERS, init_default_scope
from mmengine.runner import Runner

from mmrla.paper.recipes import CIFAR, DETECTION, IMAGENET, MOBILENET, RECIPES, REFINED
from mmrla.paper.recipes import learning_rate as paper_learning_rate
from mmrla.paper.tables import TABLES
from support import CONFIGS

# Configs whose recipe is not the paper's, and why.
OWN_RECIPES = {
    'densenet100_shared_lag_cifar_folders': 'one epoch, for a look at the weights',
    'densenet100_shared_ordinal_cifar_folders': 'one epoch, for a look at the weights',
}
# The paper's schedule on class folders, which have no validation images.
FOLDERS = ('r20_cifar_folders', 'rla_r20_cifar_folders')
CIFAR_TABLES = ('shared', 'cifar', 'cifar_ablation', 'channels', 'unshared_cifar')


def recipe_of(stem):
    """The recipe of a config by its name."""
    if 'cifar' in stem:
        return CIFAR
    if 'mbv2' in stem:
        return MOBILENET
    return REFINED if re.search(r'r\d+d_imagenet$', stem) else IMAGENET


PATHS = {path.stem: path for folder in ('pretrain', 'ablation')
         for path in sorted((CONFIGS / folder).glob('*.py')) if path.stem not in OWN_RECIPES}
# The configs of the rows of the paper's tables, relative to configs/, without the suffix.
ROWS = {key: [row.config for row in table.rows if row.config] for key, table in TABLES.items()}
DETECTORS = sorted({*ROWS['detection'], *ROWS['mask']})
CLASSIFIERS = {key: rows for key, rows in ROWS.items() if key not in ('detection', 'mask')}


@pytest.mark.parametrize('key', CLASSIFIERS)
def test_every_classifier_of_a_table_has_a_config_with_the_recipe_of_its_data(key):
    for config in CLASSIFIERS[key]:
        stem = Path(config).name
        assert PATHS.get(stem) == CONFIGS / f'{config}.py', f'{config} is missing'
        assert (recipe_of(stem) is CIFAR) == (key in CIFAR_TABLES), config


def test_each_recipe_is_that_of_a_config():
    assert {id(recipe_of(stem)) for stem in PATHS} == {
        id(recipe) for recipe in RECIPES.values() if recipe is not DETECTION}
    refined = [stem for stem in PATHS if recipe_of(stem) is REFINED]
    assert {'rla_r50d_imagenet', 'rla_eca_r50d_imagenet'} <= set(refined)


def learning_rates(cfg, epochs):
    """The learning rate at the start of every epoch, from the config's own schedulers."""
    schedule = cfg.param_scheduler if isinstance(cfg.param_scheduler, list) \
        else [cfg.param_scheduler]
    return simulate(cfg.optim_wrapper.optimizer.lr, json.dumps(schedule), epochs)


@functools.cache
def simulate(lr, schedule, epochs, iterations=2):
    """Step schedulers through a run; many configs share one schedule."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedulers = []
    for item in json.loads(schedule):
        item['optimizer'] = optimizer
        if item.pop('convert_to_iter_based', False):
            cls = PARAM_SCHEDULERS.get(item.pop('type'))
            schedulers.append(cls.build_iter_from_epoch(**item, epoch_length=iterations))
        else:
            schedulers.append(PARAM_SCHEDULERS.build(item))
    rates = []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        for i in range(iterations):
            optimizer.step()
            for scheduler in schedulers:
                if not scheduler.by_epoch or i == iterations - 1:
                    scheduler.step()
    return rates


def steps_of(pipeline):
    return {step.type: step for step in pipeline}


def check_optimizer(cfg, recipe):
    optimizer = cfg.optim_wrapper.optimizer
    assert optimizer.type == 'SGD'
    assert optimizer.lr == recipe.lr
    assert optimizer.momentum == recipe.momentum
    assert optimizer.weight_decay == recipe.weight_decay
    assert optimizer.get('nesterov', False) == recipe.nesterov
    # The paper names no parameters without decay: norms and biases are decayed too.
    assert 'paramwise_cfg' not in cfg.optim_wrapper
    assert cfg.train_cfg.max_epochs == recipe.epochs
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=recipe.batch)


def check_schedule(cfg, recipe):
    rates = learning_rates(cfg, recipe.epochs)
    for epoch, rate in enumerate(rates):
        if epoch >= recipe.warm_up:
            assert rate == pytest.approx(paper_learning_rate(recipe, epoch), rel=1e-6, abs=1e-12), \
                f'epoch {epoch}'
    warm_up = rates[:recipe.warm_up + 1]
    assert all(now < later for now, later in zip(warm_up, warm_up[1:], strict=False))
    assert not recipe.warm_up or warm_up[0] < 0.1 * recipe.lr


def check_regularisation(cfg, recipe):
    loss = cfg.model.head.loss
    assert loss.get('label_smooth_val', 0) == recipe.label_smoothing
    assert (loss.type == 'LabelSmoothLoss') == bool(recipe.label_smoothing)
    augments = cfg.model.get('train_cfg', {}).get('augments')
    assert augments == (dict(type='Mixup', alpha=recipe.mixup) if recipe.mixup else None)


def check_data(cfg, recipe):
    train = steps_of(cfg.train_dataloader.dataset.pipeline)
    test = steps_of(cfg.test_dataloader.dataset.pipeline)
    assert train['RandomFlip'].prob == 0.5 and train['RandomFlip'].direction == 'horizontal'
    if recipe.scale_augmentation:
        assert train['RandomResizedCrop'].scale == recipe.crop
        assert test['ResizeEdge'].scale == recipe.test_edge
        assert test['ResizeEdge'].edge == 'short'
        assert test['CenterCrop'].crop_size == recipe.test_crop
    else:
        assert (train['RandomCrop'].crop_size, train['RandomCrop'].padding) == (
            recipe.crop, recipe.padding)
        assert train['RandomCrop'].get('pad_val', 0) == 0
        assert not {'ResizeEdge', 'CenterCrop', 'RandomCrop', 'RandomFlip'} & set(test)
    normalised = cfg.data_preprocessor
    assert len(normalised.mean) == len(normalised['std']) == 3
    assert cfg.train_dataloader.batch_size * recipe.gpus == recipe.batch


@pytest.mark.parametrize('stem', PATHS)
def test_a_classifier_has_the_papers_recipe(stem):
    cfg, recipe = Config.fromfile(PATHS[stem]), recipe_of(stem)
    init_default_scope(cfg.default_scope)
    check_optimizer(cfg, recipe)
    check_schedule(cfg, recipe)
    check_regularisation(cfg, recipe)
    check_data(cfg, recipe)
    if stem not in FOLDERS:
        best = cfg.default_hooks.checkpoint.get('save_best')
        assert best == ('accuracy/top1' if recipe.best_checkpoint else None)


@pytest.mark.parametrize('stem', DETECTORS)
def test_a_detector_has_the_papers_recipe(stem):
    cfg = Config.fromfile(CONFIGS / f'{stem}.py')
    check_optimizer(cfg, DETECTION)
    drops, = [item for item in cfg.param_scheduler if item.type == 'MultiStepLR']
    assert (tuple(drops.milestones), drops.gamma) == (DETECTION.drops, 0.1)
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        assert min(steps_of(loader.dataset.pipeline)['Resize'].scale) == DETECTION.detection_edge
    assert cfg.train_dataloader.dataset.ann_file.endswith('instances_train2017.json')
    assert cfg.test_dataloader.dataset.ann_file.endswith('instances_val2017.json')


def test_the_refined_architecture_is_resnet_d():
    """B.2.2: three 3x3 convolutions in the stem, average-pooled shortcuts, stride in the 3x3."""
    cfg = Config.fromfile(PATHS['rla_r50d_imagenet'])
    from mmengine.registry import MODELS
    with torch.device('meta'):
        net = MODELS.build(cfg.model.backbone)
    stem = [module for module in net.stem.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [conv.kernel_size for conv in stem] == [(3, 3)] * 3
    block = net.layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
    assert isinstance(block.downsample[0], torch.nn.AvgPool2d)
    assert block.downsample[1].stride == (1, 1)


@pytest.mark.parametrize('batch, expected', [(256, 0.1), (64, 0.025), (1024, 0.4)])
def test_another_batch_scales_the_learning_rate(batch, expected):
    cfg = Config.fromfile(PATHS['rla_r50_imagenet'])
    model = torch.nn.Linear(1, 1)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)

    # What Runner.scale_lr reads of a runner.
    runner = SimpleNamespace(logger=logging.getLogger('mmengine'), world_size=1,
                             param_schedulers=[],
                             _train_dataloader=dict(batch_size=batch))
    Runner.scale_lr(runner, wrapper, cfg.auto_scale_lr)
    assert wrapper.optimizer.param_groups[0]['lr'] == pytest.approx(expected)


# The pipelines on files of the original formats.

def image_of(number):
    """An image of 3 x 32 x 32 values that holds its number, without a zero."""
    image = np.full(3072, 128, np.uint8)
    image[:3] = number // 200**2 + 1, number // 200 % 200 + 1, number % 200 + 1
    return image


def number_of(image):
    """The number of an image of shape (3, 32, 32)."""
    a, b, c = (int(value) for value in image.reshape(-1)[:3])
    return (a - 1) * 200**2 + (b - 1) * 200 + c - 1


def write_batch(path, first, count, labels):
    data = np.full((count, 3072), 128, np.uint8)
    numbers = np.arange(first, first + count)
    data[:, 0], data[:, 1] = numbers // 200**2 + 1, numbers // 200 % 200 + 1
    data[:, 2] = numbers % 200 + 1
    classes = 10 if labels == 'labels' else 100
    path.write_bytes(pickle.dumps({'data': data, labels: (numbers % classes).tolist()}))


def write_cifar(folder, classes):
    """The python version of CIFAR-10 or CIFAR-100, all 60,000 images."""
    if classes == 10:
        folder = folder / 'cifar-10-batches-py'
        folder.mkdir()
        for i in range(5):
            write_batch(folder / f'data_batch_{i + 1}', 10000 * i, 10000, 'labels')
        write_batch(folder / 'test_batch', 50000, 10000, 'labels')
    else:
        folder = folder / 'cifar-100-python'
        folder.mkdir()
        write_batch(folder / 'train', 0, 50000, 'fine_labels')
        write_batch(folder / 'test', 50000, 10000, 'fine_labels')
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize('classes', [10, 100])
def test_cifar_is_split_into_45k_and_5k_and_augmented(classes, tmp_path, monkeypatch):
    from mmpretrain.datasets import CIFAR10, CIFAR100
    sums = write_cifar(tmp_path, classes)
    cls = CIFAR10 if classes == 10 else CIFAR100
    # The files hold other images than CIFAR's, so their checksums stand in for its own.
    for name in ('train_list', 'test_list'):
        monkeypatch.setattr(cls, name, [[file, sums[file]] for file, _ in getattr(cls, name)])
    cfg = Config.fromfile(PATHS[f'rla_r164_cifar{classes}'])
    init_default_scope(cfg.default_scope)
    sets = {}
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        sets[split] = DATASETS.build(dict(dataset, data_root=str(tmp_path), download=False))
    assert (len(sets['train']), len(sets['val'])) == CIFAR.split
    assert len(sets['test']) == 10000
    numbers = {split: [number_of(data.get_data_info(i)['img'].transpose(2, 0, 1))
                       for i in (0, 1, len(data) - 1)] for split, data in sets.items()}
    assert numbers == dict(train=[0, 1, 44999], val=[45000, 45001, 49999],
                           test=[50000, 50001, 59999])
    check_cifar_views(sets, classes)


def check_cifar_views(sets, classes):
    """What the pipelines make of an image, and the normalisation."""
    sample = sets['test'][7]
    assert torch.equal(sample['inputs'].flatten(),
                       torch.from_numpy(image_of(50007))), 'a test image is used as it is'
    assert sample['data_samples'].gt_label.item() == 50007 % classes
    views = [sets['train'][7]['inputs'] for _ in range(300)]
    assert all(view.shape == (3, 32, 32) for view in views)
    offsets, flipped = set(), 0
    for view in views:
        rows, columns = (view > 0).any(0).any(1), (view > 0).any(0).any(0)
        top, left = int(rows.int().argmax()), int(columns.int().argmax())
        bottom, right = 31 - int(rows.nonzero().max()), 31 - int(columns.nonzero().max())
        offsets.add((top - bottom, left - right))
        marked = (view[0] != 128) & (view[0] != 0)
        if marked.any():
            flipped += int(marked.nonzero()[0, 1]) > 15
    ys, xs = zip(*offsets, strict=True)
    assert (min(ys), max(ys), min(xs), max(xs)) == (-4, 4, -4, 4), 'zero padding of 4'
    assert 0 < flipped < 300, 'flipped at random'


def write_imagenet(root):
    """Synset folders to train on, a flat folder of validation images with its list."""
    rng = np.random.default_rng(0)
    for split, names in (('train', ['n01440764/n01440764_10026.JPEG',
                                    'n01443537/n01443537_2.JPEG']),
                         ('val', ['ILSVRC2012_val_00000001.JPEG',
                                  'ILSVRC2012_val_00000002.JPEG'])):
        for i, name in enumerate(names):
            path = root / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            image = cv2.resize(rng.integers(0, 256, (9, 12, 3)).astype(np.uint8), (400, 300 + i))
            ok, data = cv2.imencode('.jpg', image)
            assert ok
            path.write_bytes(data.tobytes())
        (root / 'meta').mkdir(exist_ok=True)
        (root / f'meta/{split}.txt').write_text(
            ''.join(f'{name} {i}\n' for i, name in enumerate(names)))


def test_imagenet_is_cropped_flipped_and_centred(tmp_path):
    write_imagenet(tmp_path)
    cfg = Config.fromfile(PATHS['rla_r50_imagenet'])
    init_default_scope(cfg.default_scope)
    train, val = (DATASETS.build(dict(cfg[f'{split}_dataloader'].dataset,
                                      data_root=str(tmp_path))) for split in ('train', 'val'))
    assert (len(train), len(val)) == (2, 2)
    views = [train[1]['inputs'] for _ in range(12)]
    assert {tuple(view.shape) for view in views} == {(3, 224, 224)}
    assert len({view.sum().item() for view in views}) > 6, 'crops are random'
    # The shorter side to 256, then the centre of 224.
    image = cv2.imread(str(tmp_path / 'val/ILSVRC2012_val_00000001.JPEG'))
    scaled = cv2.resize(image, (int(400 * 256 / 300), 256))
    left = round((scaled.shape[1] - 224) / 2)
    expected = scaled[16:240, left:left + 224].transpose(2, 0, 1).astype(int)
    found = val[0]['inputs'].numpy().astype(int)
    assert found.shape == (3, 224, 224)
    assert np.abs(found - expected).mean() < 2
    assert [val[i]['data_samples'].gt_label.item() for i in (0, 1)] == [0, 1]


def test_imagenet_values_are_normalised_by_channel(tmp_path):
    from mmengine.registry import MODELS
    cfg = Config.fromfile(PATHS['rla_r50_imagenet'])
    init_default_scope(cfg.default_scope)
    preprocess = MODELS.build(dict(type='ClsDataPreprocessor', **cfg.data_preprocessor))
    blue = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    blue[:, 0] = 255  # images are read as BGR
    red, green, out_blue = preprocess(dict(inputs=blue))['inputs'][0, :, 0, 0].tolist()
    assert out_blue == pytest.approx((255 - 103.53) / 57.375, rel=1e-4)
    assert (red, green) == pytest.approx((-123.675 / 58.395, -116.28 / 57.12), rel=1e-4)


def test_the_weights_start_as_he_et_al_2015():
    """The standard deviation of a convolution is sqrt(2 / fan), fan in or fan out."""
    cfg = Config.fromfile(PATHS['rla_r50_imagenet'])
    from mmengine.registry import MODELS
    net = MODELS.build(cfg.model.backbone)
    net.init_weights()
    for conv in (net.layer3[1].conv2, net.rla[2].recurrent, net.rla[2].compress):
        fans = [conv.weight[0].numel(), conv.weight.shape[0] * conv.weight[0, 0].numel()]
        assert min(abs(float(conv.weight.std()) / math.sqrt(2 / fan) - 1) for fan in fans) < 0.05
    assert not net.layer3[1].bn3.weight.any(), 'zero initialisation of the last norm'
