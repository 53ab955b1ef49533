"""Base classes of the backbones: the hidden path, freezing, activation checkpointing."""
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Union,
)

import torch
from mmengine.dist import get_world_size
from mmengine.model import BaseModule, PretrainedInit, initialize
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmrla.models.rla import RLAConfig, RLAStage, State, last_convolution

from .blocks import RLABlock

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


class Gate(NamedTuple):
    """An attention and the norm before it.

    Attributes:
        attention: The attention.
        norm: The norm whose output it gates; None if other layers are in between.
    """
    attention: nn.Module
    norm: Optional[nn.Module]


def _adapt_state_dict(backbone: 'RLABackbone', state_dict: Dict[str, Any], prefix: str,
                      local_metadata: Dict[str, Any], *_: Any) -> None:
    """Load-state-dict pre-hook: take weights of any known layout."""
    from mmrla.weights.loading import adapt_state_dict  # the weights package imports the models
    adapt_state_dict(backbone, state_dict, prefix, local_metadata)


def _save_settings(backbone: 'RLABackbone', state_dict: Dict[str, Any], prefix: str,
                   local_metadata: Dict[str, Any]) -> None:
    """State-dict post-hook: save what neither names nor shapes of the weights show.

    That is the update that the hidden path computes, and the parts that are newer than the
    rest.
    """
    if backbone.rla is not None:
        local_metadata['rla'] = backbone.rla_config.update()
    if backbone.new_parts:
        local_metadata['new_parts'] = sorted(backbone.new_parts)


class RLABackbone(BaseModule):
    """A backbone that may have a hidden path.

    It loads the weights of every layout in :mod:`mmrla.weights.layouts`, through
    ``load_state_dict`` and through ``init_cfg=dict(type='Pretrained', ...)``.

    Args:
        init_cfg: As in mmengine.

    Attributes:
        rla: The hidden path, an :class:`~mmrla.models.rla.RLAStage` for each
            stage; None in a plain network.
        new_parts: The parts, ``'rla'`` and ``'attention'``, that the loaded weights did
            not contain, so that they train although the rest is pretrained. None before
            any weights are loaded.
        is_wrapped_later: Whether DDP is built after the weights are loaded, as
            ``RLARunner`` does.
        requires_all_parts: Whether weights must have entries for every child module,
            except for the parts in ``parts()``.
        takes_any_layout: Whether inference on a CPU may use channels_last inside.
    """
    rla: Optional[nn.ModuleList]
    requires_all_parts = True
    takes_any_layout = False

    def __init__(self, init_cfg: Union[dict, List[dict], None] = None) -> None:
        super().__init__(init_cfg)
        self._prepare_loading()

    def _prepare_loading(self) -> None:
        """Register the hooks that load and save weights."""
        self.register_load_state_dict_pre_hook(_adapt_state_dict)
        self.register_state_dict_post_hook(_save_settings)
        self.new_parts: Optional[FrozenSet[str]] = None
        self.is_wrapped_later = False

    def pretrained_cfgs(self) -> List[dict]:
        """The entries of ``init_cfg`` that name weights."""
        cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        return [cfg for cfg in cfgs if cfg.get('type') in PRETRAINED]

    def init_weights(self) -> None:
        """Set the initial values, then load the weights that ``init_cfg`` names."""
        pretrained, is_first = self.pretrained_cfgs(), not self.is_init
        init_cfg, self.init_cfg = self.init_cfg, self.other_cfgs()
        super().init_weights()
        self.init_cfg = init_cfg
        if is_first:
            initialize(self, [dict(cfg, type='PretrainedBackbone') for cfg in pretrained])

    def other_cfgs(self) -> List[dict]:
        """The entries of ``init_cfg`` that name no weights."""
        cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        return [cfg for cfg in cfgs if cfg and cfg.get('type') not in PRETRAINED]

    @property
    def rla_config(self) -> Optional[RLAConfig]:
        """RLAConfig: The settings of the hidden path; None without one."""
        return None if self.rla is None else self.rla[0].config

    def hidden_path(self) -> List[nn.Module]:
        """The modules that a plain network does not have."""
        return [] if self.rla is None else [self.rla]

    def gates(self) -> List[Gate]:
        """The attention of every block that has one."""
        return [Gate(module.attention, module.gated_norm()) for module in self.modules()
                if isinstance(module, RLABlock) and getattr(module, 'attention', None) is not None]

    def parts(self) -> Dict[str, List[nn.Module]]:
        """The modules that a plain network does not have, by the part they belong to."""
        return dict(rla=self.hidden_path(), attention=[gate.attention for gate in self.gates()])

    def set_new_parts(self, names: Iterable[str]) -> None:
        """Set which parts the loaded weights did not contain."""
        self.new_parts = frozenset(names)

    def new_modules(self) -> Set[nn.Module]:
        """The modules of new parts."""
        parts = self.parts()
        return {module for name in self.new_parts or () for part in parts[name]
                for module in part.modules()}

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
        """Call a function of one block of both paths."""
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
            return blocks(x), None
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
        if not isinstance(pretrained, (str, type(None))):
            raise TypeError(f'pretrained={pretrained!r} must be a path, a URL or None; '
                            'better name the weights in init_cfg')
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

    def _freeze(self, modules: Iterable[nn.Module]) -> None:
        """Turn off the gradients and statistics of modules, except for new parts."""
        new = self.new_modules()
        for module in modules:
            for child in module.modules():
                is_new = child in new
                child.training &= is_new
                for parameter in child.parameters(recurse=False):
                    parameter.requires_grad_(is_new)

    def set_new_parts(self, names: Iterable[str]) -> None:
        """Set which parts the loaded weights did not contain; freeze the others."""
        frozen = [parameter for parameter in self.parameters() if not parameter.requires_grad]
        super().set_new_parts(names)
        self.train(self.training)
        now_train = any(parameter.requires_grad for parameter in frozen)
        if now_train and get_world_size() > 1 and not self.is_wrapped_later:
            raise RuntimeError(
                f'the loaded weights have no {" and no ".join(sorted(self.new_parts))}, so these '
                'parts must train, but DDP was built without them; set '
                "runner_type='RLARunner', which builds DDP after the weights are loaded")

    def keeps_random_values(self) -> bool:
        """Whether training would not change values that are still random."""
        return (self.new_parts is None and not self.pretrained_cfgs()
                and (self.frozen_stages >= 0 or self.norm_eval))

    def train(self, mode: bool = True) -> 'DetectionBackbone':
        """Set the training mode; frozen modules stay in eval mode."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            new = self.new_modules()
            for module in self.modules():
                if isinstance(module, _BatchNorm) and module not in new:
                    module.eval()
        return self

    def _run(self, function: Callable, *args) -> Any:
        """Call a function of one block of both paths, recomputed if ``with_cp``."""
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False)
        return function(*args)
