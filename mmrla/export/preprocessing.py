"""The pre-processing of a detector: as numbers, and as ONNX nodes around the detector."""
from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

import onnx
from mmengine.config import Config

from .errors import ExportError

# The transforms of a test pipeline that change no pixel.
OTHERS = ('LoadImageFromFile', 'LoadNamedImage', 'LoadAnnotations', 'LoadNamedAnnotations',
          'PackDetInputs')


@dataclass
class Preprocessing:
    """What happens to an image before the network.

    Attributes:
        scale: The largest long and short side. The image is scaled to the largest size within
            it, with its aspect ratio kept.
        mean: Subtracted from each channel.
        std: Each channel is divided by it.
        to_rgb: Whether the channels are reversed first, from BGR.
        pad_divisor: Height and width are padded with zeros to multiples of it.
    """
    scale: Tuple[int, int]
    mean: Tuple[float, ...]
    std: Tuple[float, ...]
    to_rgb: bool
    pad_divisor: int

    @classmethod
    def of(cls, cfg: Config) -> 'Preprocessing':
        """Read the pre-processing from the config of a detector."""
        steps = cfg.model.data_preprocessor
        name = str(steps['type']).rsplit('.', 1)[-1]
        if name != 'DetDataPreprocessor' or steps.get('batch_augments'):
            raise ExportError(f'data_preprocessor={name} cannot be exported; DetDataPreprocessor '
                              'without batch_augments can')
        to_rgb = steps.get('bgr_to_rgb', False) or steps.get('rgb_to_bgr', False)
        return cls(_scale(cfg), tuple(steps.get('mean') or [0.0] * 3),
                   tuple(steps.get('std') or [1.0] * 3), to_rgb,
                   steps.get('pad_size_divisor', 1))

    def as_dict(self) -> Dict[str, Any]:
        """The values as JSON can hold them."""
        return asdict(self)


def _scale(cfg: Config) -> Tuple[int, int]:
    """The scale of the only transform of the test pipeline that changes pixels."""
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    resizes = []
    for transform in dataset.pipeline:
        name = str(transform['type']).rsplit('.', 1)[-1]
        if name == 'Resize' and transform.get('keep_ratio'):
            resizes.append(tuple(transform['scale']))
        elif name not in OTHERS:
            raise ExportError(f'the test pipeline has {name}, which cannot be exported; Resize '
                              'with keep_ratio=True can')
    if len(resizes) != 1:
        raise ExportError(f'the test pipeline has {len(resizes)} transforms Resize with '
                          'keep_ratio=True; exactly one can be exported')
    return max(resizes[0]), min(resizes[0])


BEFORE = '''
<ir_version: {ir}, opset_import: ["" : {opset}]>
before (uint8[batch, height, width, 3] pictures)
    => (float[batch, 3, h, w] ready, int64[batch, 2] content, float[4] factors)
{{
    size = Shape<start = 1, end = 3>(pictures)
    exact = Cast<to = 11>(size)
    long_side = ReduceMax<keepdims = 0>(exact)
    short_side = ReduceMin<keepdims = 0>(exact)
    largest_long = Constant<value = double {{{scale[0]}}}>()
    largest_short = Constant<value = double {{{scale[1]}}}>()
    by_long = Div(largest_long, long_side)
    by_short = Div(largest_short, short_side)
    factor = Min(by_long, by_short)
    scaled = Mul(exact, factor)
    half = Constant<value = double {{0.5}}>()
    raised = Add(scaled, half)
    whole = Floor(raised)
    new_size = Cast<to = 7>(whole)

    batch_only = Shape<start = 0, end = 1>(pictures)
    three = Constant<value_ints = [3]>()
    full = Concat<axis = 0>(batch_only, three, new_size)
    planes = Transpose<perm = [0, 3, 1, 2]>(pictures)
    real = Cast<to = 1>(planes)
    resized = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">
        (real, , , full)
    levels = Round(resized)
    channels = Constant<value_ints = {channels}>()
    ordered = Gather<axis = 1>(levels, channels)
    mean_values = Constant<value_floats = {mean}>()
    std_values = Constant<value_floats = {std}>()
    per_channel = Constant<value_ints = [1, 3, 1, 1]>()
    mean = Reshape(mean_values, per_channel)
    std = Reshape(std_values, per_channel)
    centered = Sub(ordered, mean)
    normal = Div(centered, std)

    divisor = Constant<value_ints = [{divisor}]>()
    negative = Neg(new_size)
    missing = Mod(negative, divisor)
    none = Constant<value_ints = [0, 0, 0, 0, 0, 0]>()
    pads = Concat<axis = 0>(none, missing)
    ready = Pad(normal, pads)

    two = Constant<value_ints = [2]>()
    rows = Concat<axis = 0>(batch_only, two)
    content = Expand(new_size, rows)
    new_exact = Cast<to = 11>(new_size)
    ratio = Div(new_exact, exact)
    x_and_y = Constant<value_ints = [1, 0, 1, 0]>()
    ratios = Gather(ratio, x_and_y)
    factors = Cast<to = 1>(ratios)
}}
'''
AFTER = '''
<ir_version: {ir}, opset_import: ["" : {opset}]>
after (float[found, 4] small_boxes, float[4] scale_factors) => (float[found, 4] picture_boxes)
{{
    picture_boxes = Div(small_boxes, scale_factors)
}}
'''


def with_preprocessing(detector: onnx.ModelProto, steps: Preprocessing) -> onnx.ModelProto:
    """Put the pre-processing in front of a detector.

    Args:
        detector: Takes ``images`` and ``sizes``; its first output is ``boxes``.
        steps: The pre-processing.

    Returns:
        onnx.ModelProto: Takes ``images``, uint8 of shape (B, H, W, 3), BGR, of one size. The
        boxes are in pixels of these images.
    """
    values = dict(ir=detector.ir_version, opset=detector.opset_import[0].version,
                  scale=steps.scale, mean=list(steps.mean), std=list(steps.std),
                  channels=[2, 1, 0] if steps.to_rgb else [0, 1, 2], divisor=steps.pad_divisor)
    outputs = [output.name for output in detector.graph.output]
    joined = onnx.compose.merge_models(
        _prefixed(BEFORE.format(**values), 'before/'), detector,
        io_map=[('before/ready', 'images'), ('before/content', 'sizes')],
        outputs=['before/factors', *outputs])
    joined = onnx.compose.merge_models(
        joined, _prefixed(AFTER.format(**values), 'after/'),
        io_map=[('boxes', 'after/small_boxes'), ('before/factors', 'after/scale_factors')],
        outputs=['after/picture_boxes', *outputs[1:]])
    return _renamed(joined, {'before/pictures': 'images', 'after/picture_boxes': 'boxes',
                             'boxes': 'network/boxes', 'images': 'network/images'})


def _prefixed(text: str, prefix: str) -> onnx.ModelProto:
    """A model from its text, with a prefix before all names of values."""
    return onnx.compose.add_prefix(onnx.parser.parse_model(text), prefix)


def _renamed(model: onnx.ModelProto, names: Dict[str, str]) -> onnx.ModelProto:
    """Rename values of a graph, in place."""
    graph = model.graph
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    return model
