"""Reading a trained backbone."""
from mmengine.registry import MODELS
from torch import nn

from mmrla.weights import load_weights

from .configs import read_config
from .errors import clear_errors


def read_backbone(config: str, checkpoint: str) -> nn.Module:
    """Build the backbone of a config and load a checkpoint, in eval mode.

    Every weight must come from the checkpoint: a command that shows what a
    network has learned must not show initial values.

    Args:
        config: Path of the config.
        checkpoint: Path or URL of the checkpoint.
    """
    backbone = MODELS.build(read_config(config).model.backbone)
    with clear_errors():
        report = load_weights(backbone, str(checkpoint))
    if report.initial:
        raise SystemExit(f'checkpoint {checkpoint} does not fit {config}: {report}')
    return backbone.eval()
