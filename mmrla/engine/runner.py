"""The runner: how a run starts its processes, reads its data, loads, saves and resumes."""
import contextlib
import inspect
import os
import signal
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Union

from mmengine.device import get_device
from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    is_distributed,
    is_main_process,
)
from mmengine.fileio import LocalBackend, get_file_backend, join_path
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import BaseLoop, Runner, load_state_dict
from torch import nn
from torch.utils.data import DataLoader

from mmrla.datasets.errors import name_annotation_errors, name_item_errors
from mmrla.datasets.processes import end_with_parent
from mmrla.models.backbones.base import RLABackbone
from mmrla.weights.background import WRITER
from mmrla.weights.errors import CheckpointError, SaveError
from mmrla.weights.fit import find_backbone
from mmrla.weights.layouts import revised
from mmrla.weights.loading import (
    PreparedState,
    check_parts,
    find_new_parts,
    has_backbone,
    unwrapped,
)
from mmrla.weights.reading import read_checkpoint, weights_key
from mmrla.weights.sources import load_checkpoint, read_safely
from mmrla.weights.writing import atomic_backend_args

from .data_parallel import RepeatableDataParallel
from .distributed import destroy_at_exit, init_gloo
from .errors import NoWeightsError, run_error
from .hooks.continuation import CONTINUATION, GRADIENT_ORDER
from .randomness import RepeatableBatches, make_repeatable
from .resume import check_resumable, find_newest
from .signals import StopSignals
from .work_dir import lock

# The hooks that every run has unless its config sets them to None.
DEFAULT_HOOKS = dict(
    checkpoint=dict(type='SafeCheckpointHook', interval=1),
    continuation=dict(type='ContinuationHook'),
    pending_validation=dict(type='PendingValidationHook'),
    stop_signal=dict(type='StopSignalHook'))


@RUNNERS.register_module()
class RLARunner(Runner):
    """mmengine's ``Runner``, safe against interruptions, bad files and missing GPUs.

    A config selects it with ``runner_type='RLARunner'``. It takes every argument of
    mmengine's ``Runner``. The differences are:

    - Several processes train on a machine without a GPU, over gloo.
    - Checkpoints are read as weights only and written atomically.
    - Weights of every layout in :mod:`mmrla.weights.layouts` load by themselves.
    - ``resume=True`` resumes from the newest checkpoint that can be read, exactly
      (:class:`~mmrla.engine.hooks.continuation.ContinuationHook`).
    - Errors of the data name the file.

    Attributes:
        resumed_from: The checkpoint that the run resumed from; None for a new run.
        resumed_run: The name of the run that saved it, if it has one.
        continuation: The state that ``ContinuationHook`` saved; None after it is
            restored and for a new run.
        train_batches: The batch sampler of the training data, if it can repeat its
            batches.
        stop_signals: The signals that ask the run to stop.
    """

    def __init__(self, *args, **kwargs) -> None:
        read_safely()
        self.resumed_from: Optional[str] = None
        self.resumed_run: Optional[str] = None
        self.continuation: Optional[Dict[str, Any]] = None
        self.train_batches: Optional[RepeatableBatches] = None
        self.stop_signals = StopSignals()
        self._is_initialized = False
        self._lock: Optional[IO[str]] = None
        # The work dir is not known yet; its place in the arguments is mmengine's.
        arguments = inspect.signature(Runner.__init__).bind(self, *args, **kwargs).arguments
        with self._clear_errors(arguments['work_dir']):
            super().__init__(*args, **kwargs)

    # Processes

    def setup_env(self, env_cfg: Dict) -> None:
        """Set up the processes; over gloo if there is no accelerator.

        If torchrun is killed, they save and end, as if it had passed on a SIGTERM.
        """
        if 'TORCHELASTIC_RUN_ID' in os.environ:  # torchrun is the parent
            end_with_parent(signal.SIGTERM)
        if self.distributed and not is_distributed() and get_device() == 'cpu':
            dist_cfg = env_cfg.get('dist_cfg', {})
            init_gloo(self.launcher, dist_cfg.get('timeout'), dist_cfg.get('port'))
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg: Optional[Dict], model: nn.Module) -> nn.Module:
        """Wrap the model in DDP; without device numbers if there is no accelerator.

        The buckets of DDP are those of the interrupted run, if there is one.
        """
        if self.distributed and not is_model_wrapper(model):
            model_wrapper_cfg = {**self._wrapper_defaults(model_wrapper_cfg),
                                 **(model_wrapper_cfg or {})}
            if model_wrapper_cfg['type'] == RepeatableDataParallel.__name__:
                model_wrapper_cfg[GRADIENT_ORDER] = (self.continuation or {}).get(GRADIENT_ORDER)
        return super().wrap_model(model_wrapper_cfg, model)

    def _wrapper_defaults(self, model_wrapper_cfg: Optional[Dict]) -> Dict[str, Any]:
        """The arguments of DDP that a config need not set; mmengine's, but for two."""
        defaults: Dict[str, Any] = dict(type=RepeatableDataParallel.__name__)
        is_cpu = get_device() == 'cpu'
        if is_cpu:
            defaults['device_ids'] = None
        if is_cpu or model_wrapper_cfg is None:
            defaults.update(
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False))
        return defaults

    def register_default_hooks(self, hooks: Optional[Dict[str, Any]] = None) -> None:
        """Register mmengine's default hooks and ``DEFAULT_HOOKS``."""
        hooks = {**DEFAULT_HOOKS, **(hooks or {})}
        super().register_default_hooks({
            name: hook for name, hook in hooks.items()
            if hook is not None or name not in DEFAULT_HOOKS or name == 'checkpoint'})

    # Data

    @staticmethod
    def build_dataloader(dataloader: Union[DataLoader, Dict], seed: Optional[int] = None,
                         diff_rank_seed: bool = False) -> DataLoader:
        """Build a data loader; its errors name the annotation file or the image."""
        with name_annotation_errors():
            loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        name_item_errors(loader)
        return loader

    def _build_loader(self, dataloader: Union[DataLoader, Dict, None]) -> Optional[DataLoader]:
        """Build a loader whose workers survive until a stopped run is saved."""
        if not isinstance(dataloader, dict):
            return dataloader
        loader = self.build_dataloader(
            dataloader, self.seed, self._randomness_cfg.get('diff_rank_seed', False))
        self.stop_signals.shield_workers(loader)
        return loader

    def build_train_loop(self, loop: Union[BaseLoop, Dict]) -> BaseLoop:
        """Build the training loop around a loader that can repeat its batches.

        An iteration-based loop starts the loader's workers when it is built.
        """
        if isinstance(loop, BaseLoop):
            return loop
        config = self._train_dataloader
        loader = self._build_loader(config)
        if isinstance(config, dict) and loader.batch_sampler is not None:
            sampler = getattr(loader.batch_sampler, 'sampler', loader.sampler)
            seed = getattr(sampler, 'seed', None)
            self.train_batches = make_repeatable(loader, int(self.seed if seed is None else seed))
        self._train_dataloader = loader
        try:
            return super().build_train_loop(loop)
        finally:
            # scale_lr reads the batch size there; a loader with a batch sampler has none.
            self._train_dataloader = config

    def build_val_loop(self, loop: Union[BaseLoop, Dict]) -> BaseLoop:
        """Build the validation loop."""
        self._val_dataloader = self._build_loader(self._val_dataloader)
        return super().build_val_loop(loop)

    def build_test_loop(self, loop: Union[BaseLoop, Dict]) -> BaseLoop:
        """Build the test loop."""
        self._test_dataloader = self._build_loader(self._test_dataloader)
        return super().build_test_loop(loop)

    # Running

    @staticmethod
    @contextlib.contextmanager
    def _clear_errors(work_dir: str) -> Iterator[None]:
        """Replace known errors of torch and of the disk by ones that tell the fix."""
        try:
            yield
        except Exception as error:
            known = run_error(error, work_dir)
            if known is None:
                raise
            raise known from error

    def train(self) -> nn.Module:
        """Train the model. Its weights are found before any data is read."""
        with self._clear_errors(self.work_dir):
            try:
                self.prepare_weights()
                model = super().train()
            except BaseException as error:
                self._finish_saving()
                if isinstance(error, SystemExit):  # all processes stop after the same step
                    destroy_at_exit()
                raise
            WRITER.wait()
            destroy_at_exit()
            return model

    def _finish_saving(self) -> None:
        """Complete the last checkpoint of a run that ends with an error or a signal."""
        try:
            WRITER.wait()
        except SaveError as error:  # the error of the run is raised
            self.logger.error(str(error))

    def val(self) -> dict:
        """Validate the model."""
        with self._clear_errors(self.work_dir):
            metrics = super().val()
            destroy_at_exit()
            return metrics

    def test(self) -> dict:
        """Test the model."""
        with self._clear_errors(self.work_dir):
            metrics = super().test()
            destroy_at_exit()
            return metrics

    # Loading and resuming

    def lock_work_dir(self) -> None:
        """Keep other runs out of the work dir, before any of its checkpoints is read.

        A run that is in it may remove a checkpoint that this one has just chosen.
        """
        if self._lock is None and is_main_process():
            self._lock = lock(Path(self.work_dir))

    def prepare_weights(self) -> None:
        """Initialize the model, and find out which of its parts are new.

        mmengine wraps the model in DDP before it loads weights. Which parameters train
        depends on the weights, and DDP must know it: the model is wrapped again then.
        """
        self.lock_work_dir()
        if self._has_loaded or self._is_initialized:
            return
        self._choose_checkpoint()
        model = unwrapped(self.model)
        for module in model.modules():
            if isinstance(module, RLABackbone):
                module.is_wrapped_later = True
        trained = _trainable(model)
        self._init_model_weights()
        if has_backbone(model):
            self._find_new_parts(model)
        if self.distributed and _trainable(model) != trained:
            self.model = self.wrap_model(self.cfg.get('model_wrapper_cfg'), model)

    def _find_new_parts(self, model: nn.Module) -> None:
        """Look at the checkpoint that will be loaded; stop if random values would stay."""
        backbone = find_backbone(model)[0]
        if self._load_from is not None:
            checkpoint = load_checkpoint(self._load_from, 'meta')
            backbone.set_new_parts(find_new_parts(model, checkpoint))
        elif getattr(backbone, 'keeps_random_values', bool)():
            raise NoWeightsError(
                f'{type(backbone).__name__} starts from random values, and frozen_stages='
                f'{getattr(backbone, "frozen_stages", -1)}, '
                f'norm_eval={getattr(backbone, "norm_eval", False)} would keep some of them. '
                'Name weights with --pretrained CHECKPOINT or '
                'model.backbone.init_cfg=dict(type="Pretrained", checkpoint=...), or train all '
                'layers from random values with --from-scratch')

    def _init_model_weights(self) -> None:
        """Initialize the model once; a checkpoint that is resumed brings all weights."""
        if self._is_initialized:
            return
        self._is_initialized = True
        backbone = find_backbone(unwrapped(self.model))[0]
        if self._resume and backbone is not None:
            backbone.init_cfg = backbone.other_cfgs()
        super()._init_model_weights()

    def _choose_checkpoint(self) -> None:
        """Find the checkpoint to resume from.

        ``resume='auto'`` in a config is ``resume=True``, but starts from ``load_from`` if there
        is nothing to resume from; ``resume='restart'`` resumes from ``load_from`` then. A machine
        that joins a restarted run does not know that, so all processes do what one asks for.
        """
        asked = all_gather_object(self._resume)
        mode = next(mode for mode in ('restart', 'auto', *asked) if mode in asked)
        if mode in ('auto', 'restart') or (mode and self._load_from is None):
            found = [find_newest(self.work_dir, self.logger.info) if is_main_process() else None]
            broadcast_object_list(found)  # every process resumes from the same file
            self._resume = found[0] is not None or (
                mode == 'restart' and self._load_from is not None)
            self._load_from = found[0] or self._load_from
        elif mode:
            check_resumable(self._load_from)

    def load_or_resume(self) -> None:
        """Load weights, or resume from the newest checkpoint that can be read."""
        if not self._has_loaded:
            self._choose_checkpoint()
        super().load_or_resume()

    def resume(self, filename: str, *args, **kwargs) -> None:
        """Resume from a checkpoint; see mmengine's ``Runner``."""
        super().resume(filename, *args, **kwargs)
        self.resumed_from = str(filename)
        if isinstance(self.model, RepeatableDataParallel) and GRADIENT_ORDER in self.continuation:
            self.model = self.wrap_model(self.cfg.get('model_wrapper_cfg'), self.model.module)

    def load_checkpoint(self, filename: str, map_location: Union[str, Callable] = 'cpu',
                        strict: bool = False,
                        revise_keys: List[tuple] = [(r'^module\.', '')]) -> Dict[str, Any]:
        """Load a checkpoint of any layout into the model.

        Args:
            filename: A path, a URL or any other name that mmengine knows.
            map_location: As in :func:`torch.load`.
            strict: Whether every entry must be there, and nothing else.
            revise_keys: Patterns and replacements for the state-dict keys.

        Returns:
            dict: The checkpoint.
        """
        checkpoint = load_checkpoint(filename, map_location)
        key = weights_key(checkpoint)
        checkpoint = dict(state_dict=checkpoint) if key is None else dict(
            checkpoint, state_dict=checkpoint[key])
        checkpoint['state_dict'] = revised(checkpoint['state_dict'], revise_keys)
        if isinstance(checkpoint.get('meta'), dict):
            # mmengine's resume would run this text as Python
            checkpoint['meta'].pop('config', None)
        if self._resume:
            self.continuation = checkpoint.get(CONTINUATION) or {}
            self.resumed_run = (checkpoint.get('meta') or {}).get('run')
        self._load_into_model(checkpoint, strict)
        self._has_loaded = True
        self.logger.info(f'Load checkpoint from {filename}')
        return checkpoint

    def _load_into_model(self, checkpoint: Dict[str, Any], strict: bool) -> None:
        """Load ``checkpoint['state_dict']``; the hooks see it under the model's names."""
        model = unwrapped(self.model)
        if has_backbone(model):
            prepared = PreparedState(model, checkpoint['state_dict'], strict=strict)
            checkpoint['state_dict'] = prepared.state
            self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
            prepared.load(model)
        else:
            check_parts(model, checkpoint['state_dict'])
            self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
            load_state_dict(model, checkpoint['state_dict'], strict, self.logger)

    # Saving

    def save_checkpoint(self, out_dir: str, filename: str,
                        file_client_args: Optional[dict] = None, *args,
                        backend_args: Optional[dict] = None, **kwargs) -> None:
        """Save a checkpoint: atomically on a local disk, verified anywhere else."""
        path = join_path(out_dir, filename, backend_args=backend_args)
        is_local = _is_local(path, backend_args) and file_client_args is None
        super().save_checkpoint(
            out_dir, filename, file_client_args, *args,
            backend_args=atomic_backend_args(backend_args, is_local), **kwargs)
        if is_main_process() and not is_local and file_client_args is None:
            self._read_back(path, backend_args)

    @staticmethod
    def _read_back(path: str, backend_args: Optional[dict]) -> None:
        """Compare a checkpoint in object storage, which has no rename, with its checksums."""
        content = get_file_backend(path, backend_args=backend_args).get(path)
        try:
            read_checkpoint(bytes(content), path)
        except CheckpointError as error:
            raise SaveError(f'{error}, although it was just written; the previous checkpoint is '
                            'still the newest') from error

    def write_file(self, content: bytes, path: str, backend_args: Optional[dict] = None) -> None:
        """Write bytes: atomically on a local disk."""
        arguments = atomic_backend_args(backend_args, _is_local(path, backend_args))
        get_file_backend(path, backend_args=arguments).put(content, path)


def _is_local(path: str, backend_args: Optional[dict]) -> bool:
    return isinstance(get_file_backend(path, backend_args=backend_args), LocalBackend)


def _trainable(model: nn.Module) -> List[bool]:
    """Which parameters of a model train."""
    return [parameter.requires_grad for parameter in model.parameters()]
