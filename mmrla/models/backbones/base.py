"""Base classes of the backbones: the hidden path, freezing, activation checkpointing."""
import logging
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule, PretrainedInit, initialize
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmrla.models.rla import RLAConfig, RLAStage, State, last_convolution

# The types of init_cfg that name weights.
PRETRAINED = ('Pretrained', PretrainedInit, 'PretrainedBackbone')


class Joint(NamedTuple):
    """A place where h enters the main path: ``norm(conv(x) + reader(h))``.

    Attributes:
        conv: The convolution of the main path.
        norm: The norm after it.
        reader: The last convolution of the reader.
    """
    conv: nn.Module
    norm: nn.Module
    reader: nn.Module


def _adapt_state_dict(backbone: 'RLABackbone', state_dict: Dict[str, Any], prefix: str,
                      local_metadata: Dict[str, Any], *_: Any) -> None:
    """Load-state-dict pre-hook: take weights of any known layout."""
    from mmrla.weights.loading import adapt_state_dict  # the weights package imports the models
    adapt_state_dict(backbone, state_dict, prefix, local_metadata)


def _save_update(backbone: 'RLABackbone', state_dict: Dict[str, Any], prefix: str,
                 local_metadata: Dict[str, Any]) -> None:
    """State-dict post-hook: save which update the hidden path computes.

    Neither the names nor the shapes of the weights tell the variants apart.
    """
    if backbone.rla is not None:
        local_metadata['rla'] = backbone.rla_config.update()


class RLABackbone(BaseModule):
    """A backbone that may have a hidden path.

    It loads the weights of every layout in :mod:`mmrla.weights.layouts`, through
    ``load_state_dict`` and through ``init_cfg=dict(type='Pretrained', ...)``.

    Args:
        init_cfg: As in mmengine.

    Attributes:
        rla: The hidden path, an :class:`~mmrla.models.rla.RLAStage` for each
            stage; None in a plain network.
    """
    rla: Optional[nn.ModuleList]

    def __init__(self, init_cfg: Union[dict, List[dict], None] = None) -> None:
        super().__init__(init_cfg)
        self.register_load_state_dict_pre_hook(_adapt_state_dict)
        self.register_state_dict_post_hook(_save_update)

    def pretrained_cfgs(self) -> List[dict]:
        """The entries of ``init_cfg`` that name weights."""
        cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        return [cfg for cfg in cfgs if cfg.get('type') in PRETRAINED]

    def init_weights(self) -> None:
        """Set the initial values, then load the weights that ``init_cfg`` names."""
        pretrained, is_first = self.pretrained_cfgs(), not self.is_init
        init_cfg, self.init_cfg = self.init_cfg, self._other_cfgs()
        super().init_weights()
        self.init_cfg = init_cfg
        if is_first:
            initialize(self, [dict(cfg, type='PretrainedBackbone') for cfg in pretrained])

    def _other_cfgs(self) -> List[dict]:
        cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        return [cfg for cfg in cfgs if cfg and cfg.get('type') not in PRETRAINED]

    @property
    def rla_config(self) -> Optional[RLAConfig]:
        """RLAConfig: The settings of the hidden path; None without one."""
        return None if self.rla is None else self.rla[0].config

    def hidden_path(self) -> List[nn.Module]:
        """The modules that a plain network does not have."""
        return [] if self.rla is None else [self.rla]

    def readers(self) -> List[nn.Module]:
        """The modules through which h enters the main path."""
        return [reader for stage in self.rla or () for reader in stage.readers]

    def stages_with_blocks(self) -> List[nn.Module]:
        """The stages of the main path, in the order of ``rla``. For subclasses."""
        raise NotImplementedError(
            f'{type(self).__name__} must implement stages_with_blocks for its hidden path')

    def hidden_stages(self) -> List[Tuple[RLAStage, nn.Module]]:
        """Each part of the hidden path, with the stage of the main path."""
        if self.rla is None:
            return []
        return list(zip(self.rla, self.stages_with_blocks(), strict=True))

    def joints(self) -> Iterator[Joint]:
        """The places where h enters the main path."""
        for stage, blocks in self.hidden_stages():
            for block, reader in zip(blocks, stage.readers, strict=False):
                yield Joint(*block.joint(), last_convolution(reader))

    def _run(self, function: Callable, *args) -> Any:
        """Call a function of one block."""
        return function(*args)

    def _run_stage(self, i: int, blocks: nn.Module, x: Tensor, state: Optional[State]
                   ) -> Tuple[Tensor, Optional[State]]:
        """Run both paths along stage i, or the main path if there is no hidden path.

        Args:
            i: The stage's position, from 0.
            blocks: The stage of the main path.
            x: Shape (N, C_in, H, W).
            state: The state after the previous stage; None for the first.

        Returns:
            tuple[Tensor, tuple[Tensor] | None]: x and the state after the stage.
        """
        if self.rla is None:
            return blocks(x, step=lambda t, block, x: self._run(block, x)), None
        return self.rla[i](blocks, x, state, self._run)


class DetectionBackbone(RLABackbone):
    """A backbone with the ``frozen_stages``, ``norm_eval`` and ``with_cp`` of mmdet.

    Args:
        frozen_stages: -1 freezes nothing; the subclass defines the other values.
        norm_eval: Keep batch norms in eval mode while training.
        with_cp: Recompute activations in backward to save memory. Hooks of a
            block run again when it is recomputed.
        pretrained: Deprecated in mmdet; use ``init_cfg``.
        init_cfg: As in mmengine. The default is mmdet's initialisation.
    """

    def __init__(self, frozen_stages: int, norm_eval: bool, with_cp: bool,
                 pretrained: Optional[str], init_cfg: Union[dict, List[dict], None]) -> None:
        if pretrained is not None and init_cfg is not None:
            raise ValueError(f'pretrained={pretrained!r} and init_cfg={init_cfg!r} '
                             'exclude each other; keep init_cfg')
        if pretrained is not None:
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        super().__init__(init_cfg or [
            dict(type='Kaiming', layer='Conv2d'),
            dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])
        ])
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp

    def _freeze_stages(self) -> None:
        """Turn off the gradients and statistics of the frozen modules."""
        raise NotImplementedError

    def _hidden_path_is_new(self) -> bool:
        """Whether the hidden path is new and the main path is pretrained."""
        return self.rla is not None and not self.rla_config.pretrained

    def init_weights(self) -> None:
        """Set the initial values; point out where they would stay random."""
        if not self.pretrained_cfgs() and self.frozen_stages >= 0:
            print_log(
                f'{type(self).__name__} starts from random values, and frozen_stages='
                f'{self.frozen_stages} keeps some of them for good. Give it weights '
                '(tools/train.py --pretrained, or init_cfg=dict(type="Pretrained", '
                'checkpoint=...)), or set frozen_stages=-1 and norm_eval=False. If load_from '
                'or resume brings the weights, all is well.',
                logger='current', level=logging.WARNING)
        super().init_weights()

    def train(self, mode: bool = True) -> 'DetectionBackbone':
        """Set the training mode; frozen modules stay in eval mode."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            new = self.hidden_path() if self._hidden_path_is_new() else []
            learning = {module for part in new for module in part.modules()}
            for module in self.modules():
                if isinstance(module, _BatchNorm) and module not in learning:
                    module.eval()
        return self

    def _run(self, function: Callable, *args) -> Any:
        """Call a function of one block, with activation checkpointing if ``with_cp``."""
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False)
        return function(*args)
