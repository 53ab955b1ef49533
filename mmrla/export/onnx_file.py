"""A detector as an ONNX file, with its class names and pre-processing as metadata."""
import contextlib
import json
import logging
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import onnx
import torch
from torch import nn

from mmrla.version import __version__
from mmrla.weights.writing import write_file

from .detectors import exportable
from .operators import onnx_translations
from .preprocessing import Preprocessing, with_preprocessing

OPSET = 18
# Large enough that no level of the pyramid has a side of one pixel: torch.export would treat
# such a side as a constant.
EXAMPLE = (2, 3, 320, 448)


def export_program(detector: nn.Module) -> torch.export.ExportedProgram:
    """Trace a detector for any number and size of images.

    Args:
        detector: As mmdet built it; see :func:`~mmrla.export.detectors.exportable`.

    Returns:
        torch.export.ExportedProgram: Takes images (B, 3, H, W) and sizes (B, 2).
    """
    device = next(detector.parameters()).device
    images = torch.zeros(EXAMPLE, device=device)
    sizes = torch.tensor([EXAMPLE[2:]] * EXAMPLE[0], device=device)
    dynamic = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        return torch.export.export(
            exportable(detector), (images, sizes), strict=False,
            dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic}, {0: dynamic}))


def export_network(network: nn.Module) -> torch.export.ExportedProgram:
    """Trace a backbone for any number and size of images, (B, 3, H, W)."""
    dynamic = torch.export.Dim.DYNAMIC
    network.eval()  # mmdet's ResNet returns nothing
    with torch.no_grad():
        return torch.export.export(
            network, (torch.zeros(EXAMPLE),), strict=False,
            dynamic_shapes=({0: dynamic, 2: dynamic, 3: dynamic},))


def convert(program: torch.export.ExportedProgram, outputs: Optional[List[str]] = None
            ) -> onnx.ModelProto:
    """Convert a program with the inputs ``images`` and, for a detector, ``sizes``.

    Args:
        program: Of :func:`export_program` or :func:`export_network`.
        outputs: Names of its outputs.
    """
    inputs = ['images', 'sizes'][:len(program.graph_signature.user_inputs)]
    with warnings.catch_warnings(), _errors_only('torch.onnx'):
        warnings.simplefilter('ignore')
        return torch.onnx.export(
            program, dynamo=True, verbose=False, opset_version=OPSET, input_names=inputs,
            custom_translation_table=onnx_translations(), output_names=outputs).model_proto


def to_onnx(detector: nn.Module, steps: Preprocessing, inside: bool, about: Dict[str, Any]
            ) -> onnx.ModelProto:
    """Export a detector.

    Args:
        detector: As mmdet built it, in eval mode.
        steps: Its pre-processing.
        inside: Whether the pre-processing becomes a part of the graph.
        about: More metadata, such as ``classes``.

    Returns:
        onnx.ModelProto: With standard operators only.
    """
    model = convert(export_program(detector), list(exportable(detector).outputs))
    if inside:
        model = with_preprocessing(model, steps)
    about = dict(about, preprocessing=dict(steps.as_dict(), inside=inside),
                 producer=f'mmrla {__version__}')
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in about.items()})
    onnx.checker.check_model(model)
    return model


def write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write the file; it appears whole or not at all."""
    write_file(path, lambda file: file.write(model.SerializeToString()))


@contextlib.contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """Let a logger print errors only."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
