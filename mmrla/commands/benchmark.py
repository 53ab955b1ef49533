r"""Compare the cost of models: time, memory and multiply-adds.

    python tools/benchmark.py configs/faster_rcnn_r50_fpn_1x.py \\
        configs/faster_rcnn_rla_r50_fpn_1x.py
    python tools/benchmark.py mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py \\
        configs/faster_rcnn_rla_r50_fpn_1x.py --backbone --json cost.json
    python tools/benchmark.py configs/pretrain/{r50,se_r50,eca_r50,rla_r50}_imagenet.py \\
        --batch 8 --size 224 224 --json time.json      # the paper's throughput table

Every figure is also given as a ratio to the first config. With --efficient-conv-bn-eval
a second baseline is measured as well: the first config with mmengine's own folding of
norms in eval mode. A config is a file, or the name of a config of an installed package.
All models are built in one process and are measured in turn, round by round, on the same
images, because the speed of a machine varies over time.
"""
import argparse
import copy
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import torch
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.model.efficient_conv_bn_eval import turn_on_efficient_conv_bn_eval_for_single_model
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

import mmrla  # noqa: F401  (registers the modules)
from mmrla.models.lean.fuse import fuse
from mmrla.weights.writing import write_file

from .configs import read_config
from .measurements import (
    interleaved,
    keep_freed_memory,
    multiply_adds,
    peak_memory,
    quartiles,
    saved_for_backward,
)

MODES = ('train', 'infer', 'fused')
# They take minutes to prepare, and are measured only on request.
SLOW_MODES = ('compiled-train', 'compiled-infer', 'onnx')
EFFICIENT = 'efficient_conv_bn_eval'


def images_and_boxes(batch: int, size: Sequence[int]) -> dict:
    """Return a batch as a data loader returns it: noise with 8 boxes and masks per image.

    Args:
        batch: Number of images.
        size: Height and width.
    """
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData
    rng = np.random.default_rng(0)
    height, width = size
    inputs, samples = [], []
    for _ in range(batch):
        inputs.append(torch.from_numpy(rng.integers(0, 256, (3, height, width), np.uint8)))
        corner = rng.uniform(0, 0.5, (8, 2)) * (width, height)
        extent = rng.uniform(0.1, 0.5, (8, 2)) * (width, height)
        boxes = np.concatenate([corner, corner + extent], 1).astype(np.float32)
        masks = np.zeros((8, height, width), np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int), strict=True):
            mask[y1:y2, x1:x2] = 1
        sample = DetDataSample(metainfo=dict(
            img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0)))
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(boxes), labels=torch.from_numpy(rng.integers(0, 80, 8)),
            masks=BitmapMasks(masks, height, width))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


def images_and_labels(batch: int, size: Sequence[int], classes: int) -> dict:
    """Return a classifier's batch as a data loader returns it: noise with labels.

    Args:
        batch: Number of images.
        size: Height and width.
        classes: Number of classes.
    """
    from mmpretrain.structures import DataSample
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.integers(0, 256, (batch, 3, *size), np.uint8))
    samples = [DataSample().set_gt_label(int(label)) for label in rng.integers(0, classes, batch)]
    return dict(inputs=list(inputs), data_samples=samples)


def batch_for(cfg: Config, args: argparse.Namespace) -> dict:
    """Return a batch for the model of a config; a backbone alone reads only the images."""
    if cfg.default_scope != 'mmpretrain':
        return images_and_boxes(args.batch, args.size)
    from mmpretrain.utils import register_all_modules
    register_all_modules(init_default_scope=False)
    return images_and_labels(args.batch, args.size, cfg.model.head.num_classes)


class DensePart(nn.Module):
    """The part of a detector whose shapes depend on the image alone: backbone, neck, dense head.

    Args:
        detector: A detector of mmdet with one or two stages.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.neck = detector.backbone, detector.neck
        self.head = detector.rpn_head if detector.with_rpn else detector.bbox_head

    def forward(self, images: Tensor) -> List[Tensor]:
        """The outputs of the head for images of shape (N, 3, H, W)."""
        return [level for outs in self.head(self.neck(self.backbone(images))) for level in outs]


class Subject:
    """The model of a config, or its backbone alone, and the functions to measure.

    Args:
        name: The config.
        args: Arguments of the command.
        efficient: Whether to turn on mmengine's ``efficient_conv_bn_eval``.
    """

    def __init__(self, name: str, args: argparse.Namespace, efficient: bool = False) -> None:
        cfg = read_config(name)
        cfg.merge_from_dict(args.cfg_options)
        batch = batch_for(cfg, args)
        init_default_scope(cfg.default_scope)
        self.name = Path(name).stem
        self.device = torch.device(get_device())
        self.batch = batch
        self.is_backbone = args.backbone
        if args.backbone:
            cfg.model = dict(cfg.model.backbone, init_cfg=None)
        self.layout = torch.channels_last if args.channels_last else torch.contiguous_format
        if cfg.default_scope == 'mmpretrain' and not args.backbone:
            cfg.model.setdefault('data_preprocessor', dict(
                type='ClsDataPreprocessor', **cfg.get('data_preprocessor', {})))
        self.model = MODELS.build(cfg.model).to(self.device, memory_format=self.layout)
        if efficient:
            self.name += f' + {EFFICIENT}'
            turn_on_efficient_conv_bn_eval_for_single_model(self.model)
        self.optimizer = build_optim_wrapper(self.model, cfg.optim_wrapper)
        self.fused = self.compiled = self.session = None

    @property
    def images(self) -> Tensor:
        """The images, normalized, of shape (N, 3, H, W)."""
        images = torch.stack(self.batch['inputs']).to(self.device, torch.float32)
        return ((images - 116) / 58).contiguous(memory_format=self.layout)

    def train(self) -> None:
        """Run a training step; for a backbone alone, without the optimizer step."""
        self.model.train()
        if not self.is_backbone:
            self.model.train_step(self.batch, self.optimizer)
            return
        self.model.zero_grad()
        sum(out.mean() for out in self.model(self.images)).backward()

    def forward(self, model: nn.Module) -> Any:
        """Run a model on the images: the loss in training mode, else the predictions."""
        if self.is_backbone:
            return model(self.images)
        batch = model.data_preprocessor(copy.deepcopy(self.batch), training=model.training)
        return model(**batch, mode='loss' if model.training else 'predict')

    @torch.no_grad()
    def infer(self) -> None:
        """Predict."""
        self.model.eval()
        self.forward(self.model)

    @torch.no_grad()
    def infer_fused(self) -> None:
        """Predict with the fused model."""
        if self.fused is None:
            self.fused = fuse(copy.deepcopy(self.model))
        self.forward(self.fused)

    def compiled_part(self, training: bool) -> nn.Module:
        """The backbone, or the dense part of a detector, compiled with the default backend."""
        if self.compiled is None:
            part = self.model if self.is_backbone else DensePart(self.model)
            self.compiled = torch.compile(part)
        return self.compiled.train(training)

    def train_compiled(self) -> None:
        """Run forward and backward of the compiled part."""
        self.model.zero_grad()
        sum(out.mean() for out in self.compiled_part(True)(self.images)).backward()

    @torch.no_grad()
    def infer_compiled(self) -> None:
        """Run the compiled part in eval mode."""
        self.compiled_part(False)(self.images)

    def infer_onnx(self) -> None:
        """Run the fused model in onnxruntime."""
        if self.session is None:
            self.session = self.onnx_session()
        images = self.images.cpu().numpy()
        sizes = np.array([images.shape[2:]] * len(images))
        inputs = dict(images=images, sizes=sizes)
        self.session.run(None, {each.name: inputs[each.name]
                                for each in self.session.get_inputs()})

    def onnx_session(self, profile: Optional[Path] = None) -> Any:
        """Export the fused model, and return a session of onnxruntime.

        Args:
            profile: What the name of onnxruntime's profile begins with; None writes none.
        """
        import onnxruntime

        from mmrla.export.onnx_file import convert, export_network, export_program
        model = fuse(copy.deepcopy(self.model)).cpu()
        program = export_network(model) if self.is_backbone else export_program(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile)
        return onnxruntime.InferenceSession(
            convert(program).SerializeToString(), options, providers=['CPUExecutionProvider'])

    def call(self, mode: str) -> Callable[[], None]:
        """Return the function to measure in a mode."""
        return {'train': self.train, 'infer': self.infer, 'fused': self.infer_fused,
                'compiled-train': self.train_compiled, 'compiled-infer': self.infer_compiled,
                'onnx': self.infer_onnx}[mode]

    def counts(self, modes: Sequence[str]) -> Dict[str, int]:
        """Return the figures that do not depend on the machine."""
        counts = {'parameters': sum(p.numel() for p in self.model.parameters())}
        if 'infer' in modes:
            counts['multiply-adds'] = multiply_adds(self.infer)
        if 'fused' in modes:
            self.infer_fused()
            counts['fused multiply-adds'] = multiply_adds(self.infer_fused)
        if 'train' in modes:
            self.model.train()
            counts['saved for backward'] = saved_for_backward(
                self.model, lambda: self.forward(self.model))
        return counts


def measure(subjects: List[Subject], args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Measure all subjects.

    Returns:
        list[dict]: For each subject its ``name``, ``counts``, ``ratios`` (of the
        counts to those of the first subject) and ``times`` (the quartiles of the
        seconds and of their ratios, by mode). With the second baseline, ``ratios_to_second``
        and ``ratio_to_second`` are those to the second subject.
    """
    baselines = {'': 0, '_to_second': 1} if args.efficient_conv_bn_eval else {'': 0}
    rows = [dict(name=subject.name, counts=subject.counts(args.modes), times={})
            for subject in subjects]
    if 'train' in args.modes:
        for row, subject in zip(rows, subjects, strict=True):
            row['counts']['peak memory'] = peak_memory(subject.train)
    for mode in args.modes:
        times = interleaved([subject.call(mode) for subject in subjects], args.rounds,
                            args.warm_up)
        for row, column in zip(rows, times.T, strict=True):
            row['times'][mode] = dict(seconds=quartiles(column), **{
                f'ratio{suffix}': quartiles(column / times[:, place])
                for suffix, place in baselines.items()})
    for row in rows:
        for suffix, place in baselines.items():
            row[f'ratios{suffix}'] = {name: value / max(1, rows[place]['counts'][name])
                                      for name, value in row['counts'].items()}
    return rows


def table(rows: List[Dict[str, Any]]) -> str:
    """Format the figures; times as the median ratio and its quartiles."""
    lines = defaultdict(list)
    for row in rows:
        lines['config'].append(row['name'])
        for name, value in row['counts'].items():
            lines[name].append(f'{value / 1e6:.2f} M, {row["ratios"][name]:.3f}')
        for mode, found in row['times'].items():
            low, middle, high = found['ratio']
            lines[f'{mode}, s'].append(
                f'{found["seconds"][1]:.3f}, {middle:.3f} ({low:.3f} to {high:.3f})')
        for name, value in row.get('ratios_to_second', {}).items():
            lines[f'{name} / {EFFICIENT}'].append(f'{value:.3f}')
        for mode, found in row['times'].items():
            if 'ratio_to_second' in found:
                low, middle, high = found['ratio_to_second']
                lines[f'{mode} / {EFFICIENT}'].append(f'{middle:.3f} ({low:.3f} to {high:.3f})')
    widths = [max(len(values[i]) for values in lines.values()) for i in range(len(rows))]
    first = max(map(len, lines))
    return '\n'.join(
        '  '.join([name.ljust(first), *(v.rjust(w) for v, w in zip(values, widths, strict=True))])
        for name, values in lines.items())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description='Compare the cost of models.')
    parser.add_argument('configs', nargs='+', metavar='CONFIG',
                        help='path of a config, or package::name')
    parser.add_argument('--backbone', action='store_true', help='measure the backbones alone')
    parser.add_argument('--modes', nargs='+', choices=MODES + SLOW_MODES, default=MODES,
                        help='a training step, inference, inference with the fused model; '
                        'compiled: the backbone, or backbone, neck and dense head of a detector, '
                        'with torch.compile; onnx: the fused model in onnxruntime')
    parser.add_argument('--batch', type=int, default=2, help='images per step')
    parser.add_argument('--size', nargs=2, type=int, default=(320, 320), metavar=('H', 'W'),
                        help='size of the images')
    parser.add_argument('--rounds', type=int, default=9, help='measured rounds')
    parser.add_argument('--warm-up', type=int, default=2, help='rounds before the measured ones')
    parser.add_argument('--fuse', action='store_true', help='short for --modes fused')
    parser.add_argument('--efficient-conv-bn-eval', action='store_true',
                        help="measure the first config also with mmengine's folding of norms in "
                        'eval mode, as a second baseline')
    parser.add_argument('--channels-last', action='store_true',
                        help='with --backbone: weights and images in channels_last')
    parser.add_argument('--return-memory', action='store_true',
                        help='on a CPU, let the allocator return freed memory to the system')
    parser.add_argument('--json', type=Path, help='write all figures to this file')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={},
                        metavar='KEY=VALUE', help='settings that override every config')
    return parser


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = build_parser()
    args = parser.parse_args(argv)
    args.modes = ('fused',) if args.fuse else tuple(args.modes)
    if args.channels_last and not args.backbone:
        parser.error('--channels-last needs --backbone: heads choose their own memory format')
    if args.rounds < 1 or args.warm_up < 0 or args.batch < 1 or min(args.size) < 32:
        parser.error(f'--rounds {args.rounds}, --warm-up {args.warm_up}, --batch {args.batch} and '
                     f'--size {args.size} must be at least 1, 0, 1 and 32')
    return args


def settings_of(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the settings that the figures depend on."""
    return dict(batch=args.batch, size=args.size, rounds=args.rounds, backbone=args.backbone,
                channels_last=args.channels_last, return_memory=args.return_memory,
                threads=torch.get_num_threads(), device=get_device(), torch=torch.__version__)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parse_args(argv)
    if not args.return_memory:
        keep_freed_memory()
    from mmdet.utils import register_all_modules
    register_all_modules(init_default_scope=False)
    subjects = [Subject(name, args) for name in args.configs]
    if args.efficient_conv_bn_eval:
        subjects.insert(1, Subject(args.configs[0], args, efficient=True))
    rows = measure(subjects, args)
    print(table(rows))
    if args.json:
        content = json.dumps(dict(settings=settings_of(args), models=rows), indent=2)
        write_file(args.json, lambda file: file.write(content.encode()))


if __name__ == '__main__':
    main()
