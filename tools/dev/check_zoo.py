"""Change the type of the backbone in the configs of mmdet and mmpretrain, and nothing else.

    pip install -r requirements/zoo.txt
    python tools/dev/check_zoo.py --results zoo.json --table docs/zoo_compatibility.md

Of each family of configs whose backbone is a ResNet or ResNeXt, one config for each kind
of backbone is tried: ``type='ResNet'`` becomes ``'RLAResNet'``, the model is built, trained for
one step on small random images, and used for a prediction. Weights are not downloaded, and
paths of teachers are made absolute; a language model is a small random one. Each config
runs in a process of its own with a time limit. A config that is built and fails is tried with
the next larger size of --sizes, because some detectors need more locations than small images
give. Where ours fails with all sizes, the plain backbone runs in the same way. The exit code
is 1 if a config fails with ours and not with the plain backbone.

A second call continues: configs that are in the file of results are not tried again.
--again tries those that failed once more.
"""
import argparse
import importlib
import json
import math
import multiprocessing
import re
import string
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch import Tensor, nn

import mmrla  # noqa: F401  (registers the modules)

PACKAGES = ('mmdet', 'mmpretrain')
KINDS = {'ResNet': 'RLAResNet', 'ResNetV1c': 'RLAResNetV1c', 'ResNetV1d': 'RLAResNetV1d',
         'ResNeXt': 'RLAResNeXt'}
GROUPED = re.compile(r'x101|x50|resnext')
DEPTH_50 = re.compile(r'r50|resnet(v1[cd])?50|x50|resnext50')
PERSON = (256, 128)  # the images of the re-identification networks, which pool a fixed window
STAGES = ('built', 'trained', 'predicted')
TOO_SLOW = 'not done after'
BATCH = 2


class Settings:
    """What the arguments of the command set.

    Attributes:
        size: Height and width of the images.
        sizes: The sizes to try until one works.
    """
    size = 64
    sizes: Sequence[int] = (64, 256, 384)


class Case(NamedTuple):
    """A config to try.

    Attributes:
        package: mmdet or mmpretrain.
        config: Its path below the package's configs.
        kinds: The types of its backbones.
    """
    package: str
    config: str
    kinds: Tuple[str, ...]

    @property
    def family(self) -> str:
        """str: The folder of the config."""
        return self.config.split('/')[0]

    @property
    def key(self) -> str:
        """str: A name for the file of results."""
        return f'{self.package}/{self.config}'


def configs_of(package: str) -> Path:
    """The folder with the configs of an installed package."""
    return Path(importlib.import_module(package).__file__).parent / '.mim/configs'


def dicts(value: Any) -> Iterator[dict]:
    """All dicts inside a value."""
    if isinstance(value, dict):
        yield value
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        for item in items:
            yield from dicts(item)


def kind_of(cfg: dict) -> Optional[str]:
    """The type of a backbone without its scope; None for other dicts."""
    name = cfg.get('type')
    name = name.split('.')[-1] if isinstance(name, str) else getattr(name, '__name__', None)
    return name if name in KINDS else None


def kinds_of(cfg: Config) -> Tuple[str, ...]:
    """The types of all backbones of a config that are ResNets."""
    found = {kind_of(part) for part in dicts(cfg.get('model', {}))}
    return tuple(sorted(found - {None}))


def load(path: Path) -> Optional[Config]:
    """Read a config; None if it cannot be read, as with a base in another repository."""
    try:
        return Config.fromfile(path)
    except Exception:  # a config is code
        return None


def cases_of_family(package: str, folder: Path) -> Iterator[Case]:
    """One config for each kind of backbone, with depth 50 where there is one."""
    paths = sorted(folder.glob('*.py'),
                   key=lambda path: (not DEPTH_50.search(path.name), path.name))
    seen = set()
    for grouped in (False, True):
        for path in paths:
            if bool(GROUPED.search(path.name)) != grouped:
                continue
            cfg = load(path)
            kinds = () if cfg is None else kinds_of(cfg)
            if kinds and kinds not in seen:
                seen.add(kinds)
                yield Case(package, f'{folder.name}/{path.name}', kinds)
            # The types of one family differ in mmpretrain's ResNets alone.
            if kinds and folder.name != 'resnet':
                break


def all_cases(packages: Sequence[str], families: Sequence[str]) -> Iterator[Case]:
    """The configs to try."""
    for package in packages:
        for folder in sorted(path for path in configs_of(package).iterdir() if path.is_dir()):
            if folder.name != '_base_' and (not families or folder.name in families):
                yield from cases_of_family(package, folder)


def swap(cfg: Config) -> None:
    """Change the type of every ResNet and ResNeXt to ours."""
    for part in dicts(cfg.model):
        kind = kind_of(part)
        if kind is None:
            continue
        scope = part['type'].rpartition('.')[0] if isinstance(part['type'], str) else ''
        part['type'] = f'{scope}.{KINDS[kind]}' if scope else KINDS[kind]
        if scope == 'mmpretrain' and cfg.get('default_scope') != 'mmpretrain':
            part['defaults'] = 'mmpretrain'


def remove_weights(cfg: Config, package: str) -> None:
    """Start from random values, and read the teacher's config from the package."""
    for part in dicts(cfg.model):
        for key in ('init_cfg', 'pretrained', 'teacher_ckpt', 'checkpoint'):
            value = part.get(key)
            if isinstance(value, str) or isinstance(value, dict) and 'checkpoint' in value:
                part[key] = None
        if isinstance(part.get('teacher_config'), str):
            part['teacher_config'] = str(
                configs_of(package) / part['teacher_config'].removeprefix('configs/'))
        part.pop('batch_augments', None)  # they pad to 1024 pixels


def small_language_models(cfg: Config, folder: str) -> None:
    """Read language models from a folder with a random BERT of one layer."""
    models = [part['language_model'] for part in dicts(cfg.model) if 'language_model' in part]
    if not models:
        return
    from transformers import BertConfig, BertModel
    letters = string.ascii_lowercase
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', '?', *letters]
    Path(folder, 'vocab.txt').write_text('\n'.join(words))
    BertModel(BertConfig(vocab_size=len(words), num_hidden_layers=1,
                         intermediate_size=64)).save_pretrained(folder)
    for model in models:
        model['name'] = folder


def num_classes(cfg: Config) -> int:
    """The smallest number of classes of the heads."""
    values = [part[key] for part in dicts(cfg.model) for key in
              ('num_classes', 'num_things_classes') if isinstance(part.get(key), int)]
    return max(1, min(values, default=10))


def raise_thresholds(cfg: Config) -> None:
    """Let few of the scores of an untrained head with many classes pass.

    Each is about one over the number of classes: mmdet's nms would take hours for V3Det's.
    """
    classes = num_classes(cfg)
    for part in dicts(cfg.model):
        if classes > 1000 and isinstance(part.get('score_thr'), float):
            part['score_thr'] = max(part['score_thr'], 10 / classes)


def segmentation_stride(cfg: Config) -> int:
    """The stride of the semantic labels that the training pipeline makes."""
    scales = [part.get('scale_factor', 1) for part in dicts(cfg.get('train_dataloader', {}))
              if part.get('type') == 'SegRescale']
    return round(1 / scales[0]) if scales else 1


def finds_proposals(cfg: Config) -> bool:
    """Whether a detector has a head that proposes boxes."""
    return any(part.get('rpn_head') for part in dicts(cfg.model))


def detection_batch(cfg: Config) -> dict:
    """Random images with boxes, masks, semantic labels, names of the classes and proposals."""
    from mmdet.testing import demo_mm_inputs
    classes, size = num_classes(cfg), Settings.size
    names = tuple(string.ascii_lowercase[index % 26] for index in range(classes))
    batch = demo_mm_inputs(
        BATCH, [(3, size, size)] * BATCH, num_items=[3] * BATCH,
        num_classes=min(255, max(2, classes)),  # mmdet draws semantic labels of 8 bits
        sem_seg_output_strides=segmentation_stride(cfg), with_mask=True, with_semantic=True)
    for sample in batch['data_samples']:
        sample.gt_instances.labels.clamp_(max=classes - 1)
        sample.ignored_instances.labels = torch.zeros(3, dtype=torch.long)
        if not finds_proposals(cfg):  # given ones would replace them in predictions
            boxes = sample.gt_instances.bboxes
            sample.proposals = InstanceData(
                bboxes=torch.cat([boxes, boxes + 4]), scores=torch.ones(6))
        sample.set_metainfo(dict(
            homography_matrix=torch.eye(3).numpy(), batch_input_shape=(size, size),
            pad_shape=(size, size), text=names, custom_entities=True))
    return batch


class Steps(NamedTuple):
    """How a kind of model is used.

    Attributes:
        loss: Returns the losses of a model.
        predict: Returns its prediction.
    """
    loss: Callable[[nn.Module, Config], Dict[str, Any]]
    predict: Callable[[nn.Module, Config], Any]


def detector_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of a detector."""
    return model(**model.data_preprocessor(detection_batch(cfg), True), mode='loss')


def detector_predict(model: nn.Module, cfg: Config) -> Any:
    """The detections."""
    return model(**model.data_preprocessor(detection_batch(cfg), False), mode='predict')


def semi_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of a student with its teacher."""
    preprocess = model.data_preprocessor.data_preprocessor
    branches = {name: preprocess(detection_batch(cfg), True)
                for name in ('sup', 'unsup_teacher', 'unsup_student')}
    return model.loss({name: data['inputs'] for name, data in branches.items()},
                      {name: data['data_samples'] for name, data in branches.items()})


def semi_predict(model: nn.Module, cfg: Config) -> Any:
    """The detections of the student or the teacher."""
    data = model.data_preprocessor.data_preprocessor(detection_batch(cfg), False)
    return model(**data, mode='predict')


def track_batch(cfg: Config, frames: int, key_frames: Optional[List[int]]) -> dict:
    """A random video."""
    from mmdet.testing import demo_track_inputs
    batch = demo_track_inputs(1, frames, key_frames, (3, *[Settings.size] * 2), num_items=[3],
                              num_classes=num_classes(cfg), with_mask=True)
    for sample in batch['data_samples']:
        for frame in sample.video_data_samples:
            frame.set_metainfo(dict(ori_video_length=frames, video_length=frames))
    return batch


def track_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of a tracker that trains as a whole."""
    return model(**model.data_preprocessor(track_batch(cfg, 2, [0]), True), mode='loss')


def track_predict(model: nn.Module, cfg: Config) -> Any:
    """The tracks of a video of one frame, or of two for a network of whole videos."""
    frames = 2 if type(model).__name__ == 'Mask2FormerVideo' else 1
    return model(**model.data_preprocessor(track_batch(cfg, frames, None), False), mode='predict')


def reid_samples() -> list:
    """Two identities with two images each."""
    from mmdet.structures import ReIDDataSample
    return [ReIDDataSample().set_gt_label(label) for label in (0, 0, 1, 1)]


def reid_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of a re-identification network."""
    return model(torch.randn(4, 3, *PERSON), reid_samples(), mode='loss')


def reid_predict(model: nn.Module, cfg: Config) -> Any:
    """The embeddings."""
    return model(torch.randn(4, 3, *PERSON), reid_samples(), mode='predict')


def parts_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of the parts of a tracker, which mmdet trains one by one."""
    losses = {}
    if any(kind_of_module(part) for part in model.detector.modules()):
        data = detection_batch(cfg)
        images = torch.stack(data['inputs']).float() / 255
        losses.update(model.detector.loss(images, data['data_samples']))
    reid = getattr(model, 'reid', None)
    if reid is not None and any(kind_of_module(part) for part in reid.modules()):
        # mmdet's configs of trackers have no losses for this part: they train it alone.
        losses['loss_reid'] = reid(
            torch.randn(4, 3, *PERSON), mode='tensor')[-1].square().mean()
    return losses


def kind_of_module(module: nn.Module) -> bool:
    """Whether a module is one of the backbones."""
    return type(module).__name__ in {*KINDS, *KINDS.values()}


def random_images() -> Tensor:
    """Images that are normalised."""
    return torch.randn(BATCH, 3, Settings.size, Settings.size)


def image_samples() -> list:
    """Labels of the classes 0 and 1."""
    from mmpretrain.structures import DataSample
    return [DataSample().set_gt_label(label) for label in range(BATCH)]


def classifier_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of a classifier, with the labels mixed where the config mixes them."""
    samples, images = image_samples(), random_images()
    if any('MultiLabel' in str(part.get('type')) or part.get('type') == 'CSRAClsHead'
           for part in dicts(cfg.model.get('head', {}))):
        for sample in samples:
            sample.set_gt_score(torch.zeros(num_classes(cfg)))
    return model(images, samples, mode='loss')


def classifier_predict(model: nn.Module, cfg: Config) -> Any:
    """The scores."""
    if hasattr(model, 'prototype'):
        model.prototype = torch.randn(4, model.head.in_channels)
    return model(random_images(), image_samples(), mode='predict')


def views_loss(model: nn.Module, cfg: Config) -> Dict[str, Any]:
    """The losses of self-supervised training, of two views or of SwAV's eight crops."""
    views = [random_images() for _ in range(2)]
    if type(model).__name__ == 'SwAV':
        views += [images[..., ::2, ::2] for images in views * 3]
    return model(views, image_samples(), mode='loss')


def views_predict(model: nn.Module, cfg: Config) -> Any:
    """The features: nothing is predicted in self-supervised training."""
    return model(random_images(), mode='tensor')


DETECTOR = Steps(detector_loss, detector_predict)
CLASSIFIER = Steps(classifier_loss, classifier_predict)
# By the class of the model or one of its bases; the first that fits counts.
STEPS = {
    'BaseReID': Steps(reid_loss, reid_predict),
    'SemiBaseDetector': Steps(semi_loss, semi_predict),
    'DeepSORT': Steps(parts_loss, track_predict),
    'QDTrack': Steps(track_loss, track_predict),
    'BaseMOTModel': Steps(track_loss, track_predict),
    'BaseDetector': DETECTOR,
    'BaseSelfSupervisor': Steps(views_loss, views_predict),
    'BaseRetriever': CLASSIFIER,
    'BaseClassifier': CLASSIFIER,
}


def steps_of(model: nn.Module) -> Steps:
    """How a model is used."""
    bases = {base.__name__ for base in type(model).__mro__}
    return next(steps for name, steps in STEPS.items() if name in bases)


def check_gradients(model: nn.Module) -> None:
    """Every gradient is finite, and every parameter of a trained backbone has one."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise RuntimeError(f'the gradient of {name} is not finite')
    for prefix, module in model.named_modules():
        # A teacher does not train, although its parameters say so.
        if not kind_of_module(module) or 'teacher' in prefix:
            continue
        missing = [name for name, parameter in module.named_parameters()
                   if parameter.requires_grad and parameter.grad is None]
        if missing:
            raise RuntimeError(f'{prefix}.{missing[0]} has no gradient ({len(missing)} in all)')


def keep_boxes(model: nn.Module) -> None:
    """Let heads on regions return the boxes that they are given.

    Untrained heads may move boxes out of the image, where mmdet cannot paste masks on a CPU.
    """
    for name, module in model.named_modules():
        if 'fc_reg' in name.split('.') and hasattr(module, 'weight'):
            nn.init.zeros_(module.weight)


def total(losses: Dict[str, Any]) -> Tensor:
    """The sum of all losses."""
    values = [value for name, value in losses.items() if 'loss' in name]
    flat = [tensor for value in values
            for tensor in (value if isinstance(value, (list, tuple)) else [value])]
    return sum(tensor.mean() for tensor in flat)


def build(cfg: Config) -> nn.Module:
    """Build a model, without synchronised norms."""
    alone = any(part.get('type') == 'MMSyncBN' for part in dicts(cfg.model))
    if alone:  # mmcv's norm asks for the group of processes when it is built
        torch.distributed.init_process_group(
            'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        small_language_models(cfg, folder)
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
    if alone:
        torch.distributed.destroy_process_group()
    return model


def run(package: str, config: str, ours: bool, report: Callable[[str], None],
        change: Callable[[Config], None] = lambda cfg: None) -> None:
    """Build, train and predict.

    Args:
        package: mmdet or mmpretrain.
        config: The config's path below the package's configs.
        ours: Whether the type of the backbone is changed.
        report: Called with the name of each stage that is done.
        change: Changes the config before it is built, to make it smaller.
    """
    importlib.import_module(f'{package}.utils').register_all_modules(init_default_scope=False)
    cfg = Config.fromfile(configs_of(package) / config)
    if cfg.get('custom_imports'):
        cfg.custom_imports['allow_failed_imports'] = True
    remove_weights(cfg, package)
    raise_thresholds(cfg)
    change(cfg)
    if ours:
        swap(cfg)
    init_default_scope(cfg.get('default_scope', package))
    torch.manual_seed(0)
    hub = MessageHub.get_instance('check_zoo')
    for name, value in dict(epoch=0, iter=0, max_epochs=12, max_iters=1000).items():
        hub.update_info(name, value)
    model = build(cfg)
    model.init_weights()
    report('built')
    model.train()
    steps = steps_of(model)
    loss = total(steps.loss(model, cfg))
    if not math.isfinite(loss.item()):
        raise RuntimeError(f'the loss is {loss.item()}')
    loss.backward()
    check_gradients(model)
    report('trained')
    model.eval()
    keep_boxes(model)
    with torch.no_grad():
        steps.predict(model, cfg)
    report('predicted')


def child(package: str, config: str, ours: bool, pipe: Any) -> None:
    """Run a case in a process of its own."""
    sys.stdout = sys.stderr = open('/dev/null', 'w')  # noqa: SIM115
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    try:
        run(package, config, ours, pipe.send)
    except BaseException as error:  # configs and models raise anything
        lines = str(error).strip().splitlines() or ['']
        pipe.send(('error', f'{type(error).__name__}: {lines[-1]}'[:200]))
    pipe.close()


def attempt(case: Case, ours: bool, limit: float) -> Dict[str, Any]:
    """Run a case with a time limit.

    Returns:
        dict: The stages that are done, and the error if there was one.
    """
    context = multiprocessing.get_context('fork')  # the packages are imported once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(case.package, case.config, ours, sender))
    start = time.monotonic()
    process.start()
    sender.close()
    done, error = [], None
    try:
        while receiver.poll(max(0, limit - (time.monotonic() - start))):
            message = receiver.recv()
            if isinstance(message, str):
                done.append(message)
            else:
                error = message[1]
    except EOFError:
        pass
    else:
        error = error or f'{TOO_SLOW} {limit:g} s'
        process.kill()
    process.join()
    if error is None and len(done) < len(STAGES):
        error = f'the process ended with {process.exitcode}'
    return dict(done=done, error=error)


def attempt_sizes(case: Case, ours: bool, limit: float) -> Dict[str, Any]:
    """Run a case with larger and larger images until it works.

    Larger images help neither a model that is not built nor one that is too slow.

    Returns:
        dict: What :func:`attempt` returns for the size that got furthest, and that size.
    """
    best: Dict[str, Any] = dict(done=[], error=None)
    for size in Settings.sizes:
        Settings.size = size
        found = dict(attempt(case, ours, limit), size=size)
        if len(found['done']) >= len(best['done']):
            best = found
        error = found['error']
        if not error or 'built' not in found['done'] or error.startswith(TOO_SLOW):
            break
    return best


def check(case: Case, limit: float) -> Dict[str, Any]:
    """Try a config with ours, and with the plain backbone if that fails."""
    result = dict(package=case.package, config=case.config, kinds=list(case.kinds),
                  limit=limit, ours=attempt_sizes(case, True, limit))
    if result['ours']['error']:
        result['plain'] = attempt_sizes(case, False, limit)
    return result


def fails_with_ours_alone(result: Dict[str, Any]) -> bool:
    """Whether the plain backbone gets further than ours."""
    return 'plain' in result and len(result['plain']['done']) > len(result['ours']['done'])


def outcome(attempted: Dict[str, Any]) -> str:
    """What an attempt did, for a cell of the table."""
    text = '; '.join(filter(None, [
        ', '.join(attempted['done']) or 'not built', attempted['error']]))
    return ' '.join(text.split()).replace('|', '/').replace('<', '&lt;')


def rows(results: Sequence[Dict[str, Any]]) -> Iterator[str]:
    """The rows of the table."""
    yield '| config | backbone | pixels | built | trained | predicted | error | plain |'
    yield '|---|---|---|---|---|---|---|---|'
    for result in results:
        ours, plain = result['ours'], result.get('plain')
        marks = ['yes' if stage in ours['done'] else 'no' for stage in STAGES]
        error = outcome(ours).partition('; ')[2]
        beside = '' if plain is None else outcome(plain)
        if plain is not None and outcome(plain) == outcome(ours):
            beside = 'the same'
        cells = [f'`{result["config"]}`', ', '.join(result['kinds']), str(ours['size'] or ''),
                 *marks, error, beside]
        yield f'| {" | ".join(cells)} |'


def summary(results: Sequence[Dict[str, Any]]) -> str:
    """The counts in one sentence."""
    works = [result for result in results if not result['ours']['error']]
    families = {(result['package'], result['config'].split('/')[0]) for result in results}
    good = {(result['package'], result['config'].split('/')[0]) for result in works}
    alone = sum(map(fails_with_ours_alone, results))
    return (f'{len(works)} of {len(results)} configs, in {len(good)} of {len(families)} families, '
            'build, train and predict. Failures in the same stage with the plain backbone: '
            f'{len(results) - len(works) - alone}; with ours alone: {alone}.')


def page(results: Sequence[Dict[str, Any]], note: str = '') -> str:
    """The page of the documentation, with a note on what was tried."""
    limits = ', '.join(f'{limit:g}' for limit in sorted({result['limit'] for result in results}))
    lines = ['# The zoos with RLA', '',
             '<!-- Made by tools/dev/check_zoo.py; do not edit. -->', '',
             'One config for each family and kind of backbone of the installed packages, with '
             "`type='ResNet'` changed to `'RLAResNet'`", 'and nothing else, in a process of its '
             f'own of at most {limits} s: it is built, trained for one step with a finite gradient '
             'for every', 'parameter of the backbone, and predicts. Images are random, '
             f'{BATCH} in a batch, on a CPU; the column "pixels" has their height and width. A '
             'config', 'that fails with small images is tried with larger ones. The last column '
             'says what the plain backbone does where ours fails.', '',
             '    pip install -r requirements/zoo.txt',
             '    python tools/dev/check_zoo.py --results zoo.json --table '
             'docs/zoo_compatibility.md', '',
             ' '.join(filter(None, [summary(results), note])), '']
    for package in PACKAGES:
        of_package = [result for result in results if result['package'] == package]
        if of_package:
            version = importlib.import_module(package).__version__
            lines += [f'## {package} {version}', '', summary(of_package), '', *rows(of_package),
                      '']
    return '\n'.join(lines)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Try the zoos of mmdet and mmpretrain with RLA.')
    parser.add_argument('families', nargs='*', help='default: all families')
    parser.add_argument('--packages', nargs='+', choices=PACKAGES, default=PACKAGES,
                        help='the packages whose configs are tried')
    parser.add_argument('--limit', type=float, default=300, help='seconds for one config')
    parser.add_argument('--sizes', type=int, nargs='+', default=Settings.sizes,
                        help='pixels of the images; the next if a config fails')
    parser.add_argument('--again', action='store_true', help='try those again that failed')
    parser.add_argument('--results', type=Path, help='file to continue and to write, JSON')
    parser.add_argument('--note', default='', help='text to add to the page')
    parser.add_argument('--table', type=Path, help='page to write, Markdown')
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Try the configs."""
    args = build_parser().parse_args(argv)
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)  # a process that used more threads cannot fork
    for package in args.packages:
        importlib.import_module(f'{package}.utils').register_all_modules(init_default_scope=False)
    known = {}
    if args.results and args.results.exists():
        known = json.loads(args.results.read_text())
    Settings.sizes = args.sizes
    for case in all_cases(args.packages, args.families):
        if case.key in known and not (args.again and known[case.key]['ours']['error']):
            continue
        start = time.monotonic()
        known[case.key] = result = check(case, args.limit)
        print(f'{case.key} {" ".join(result["ours"]["done"])} {result["ours"]["error"] or ""} '
              f'{time.monotonic() - start:.0f} s', flush=True)
        if args.results:
            args.results.write_text(json.dumps(known, indent=1))
    results = [known[key] for key in sorted(known)]
    if args.table:
        args.table.write_text(page(results, args.note))
    print(summary(results))
    return int(any(map(fails_with_ours_alone, results)))


if __name__ == '__main__':
    sys.exit(main())
