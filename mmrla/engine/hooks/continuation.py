"""Continue a run exactly: save and restore all that its next step depends on."""
import functools
from typing import Any, Dict, List, Optional

from mmengine.dataset import InfiniteSampler
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import loops
from torch.utils.data import DataLoader

from mmrla.engine.randomness import random_state, restore_random_state

# The key of this hook's state in a checkpoint.
CONTINUATION = 'continuation'
# The key of the order of the gradients in that state; see RepeatableDataParallel.
GRADIENT_ORDER = 'gradient_order'


@HOOKS.register_module()
class ContinuationHook(Hook):
    """Add to a checkpoint what mmengine does not save, and restore it on resume.

    That is: the random states and buffers of every process, the seed of the data, the
    position in the epoch, the order in which gradients are added, and whether the checkpoint
    was validated. Validation leaves the random states unchanged.
    """

    # Before CheckpointHook (VERY_LOW, 90): a checkpoint that is saved after a validation
    # must contain the random states from before it.
    priority = 85

    def __init__(self) -> None:
        self._collected: Optional[Dict[str, List[Any]]] = None
        self._first_batch = 0
        self._validated_at = -1
        self._before_validation: Optional[Dict[str, Any]] = None

    # Saving

    def before_save_state(self, runner) -> None:
        """Collect the states of all processes. ``SafeCheckpointHook`` calls this on each."""
        self._collected = dict(random_states=all_gather_object(random_state()))
        if get_world_size() > 1:
            self._collected['buffers'] = all_gather_object(
                {name: buffer.cpu() for name, buffer in runner.model.named_buffers()})

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Add the collected states. The best checkpoint, which nobody resumes, has none."""
        if self._collected is None:
            return
        batches = runner.train_batches
        checkpoint[CONTINUATION] = dict(
            _layout(runner), seed=None if batches is None else batches.seed,
            validated=self._validated_at == checkpoint['meta']['iter'], **self._collected)
        order = getattr(runner.model, GRADIENT_ORDER, None)
        if order is not None:
            checkpoint[CONTINUATION][GRADIENT_ORDER] = list(order)
        self._collected = None

    # Resuming

    def before_train(self, runner) -> None:
        """Restore the states and the position of the run that is resumed."""
        state = runner.continuation
        if state is None:
            return
        self._restore_seed(runner, state.get('seed'))
        self._find_position(runner, state)
        self._restore_buffers(runner, state.get('buffers', []))
        if isinstance(runner.train_loop, loops.IterBasedTrainLoop):
            self._restart_iterator(runner)
        self._restore_random_states(state)

    @staticmethod
    def _restore_seed(runner, seed: Optional[int]) -> None:
        """Give the data the seed of the interrupted run.

        mmengine builds the sampler before it knows that seed.
        """
        if seed is None or runner.train_batches is None:
            return
        runner.train_batches.seed = seed
        sampler = _sampler(runner.train_loop.dataloader)
        if hasattr(sampler, 'seed'):
            sampler.seed = seed

    def _find_position(self, runner, state: Dict[str, Any]) -> None:
        """Go to the batch after the last one of the interrupted run."""
        loop, now = runner.train_loop, _layout(runner)
        before = {key: state.get(key, value) for key, value in now.items()}
        if isinstance(loop, loops.IterBasedTrainLoop):
            self._first_batch = loop._iter
        else:
            batch = loop._iter - loop._epoch * before['batches_per_epoch']
            batch = batch * before['total_batch'] // now['total_batch']
            self._first_batch = max(0, min(batch, now['batches_per_epoch']))
            loop._iter = loop._epoch * now['batches_per_epoch'] + self._first_batch
        if self._first_batch:
            runner.logger.info(f'continuing after batch {self._first_batch} of '
                               f'{now["batches_per_epoch"]}; earlier images are not loaded again')
        if before != now:
            _warn_of_changes(runner, before, now)

    @staticmethod
    def _restore_buffers(runner, buffers: List[Dict[str, Any]]) -> None:
        """Restore the statistics of this process's norms; ``state_dict`` has rank 0's."""
        if len(buffers) != get_world_size():
            return
        for name, buffer in runner.model.named_buffers():
            if name in buffers[get_rank()]:
                buffer.copy_(buffers[get_rank()][name])

    def _restart_iterator(self, runner) -> None:
        """Restart the endless iterator, which mmengine started before the resume."""
        loop, batches = runner.train_loop, runner.train_batches
        if batches is None:
            return
        sampler = _sampler(loop.dataloader)
        epoch, batches.first = 0, self._first_batch
        if isinstance(sampler, InfiniteSampler):
            sampler.indices = sampler._indices_of_rank()
        else:
            epoch, batches.first = divmod(self._first_batch, len(loop.dataloader))
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
        batches.epoch = 0
        batches.forget()
        # OneDL's loop calls skip_iter, or nothing with this setting.
        asked_for = 0 if hasattr(loop, 'fast_forward_on_resume') else loop._iter
        loop.dataloader_iterator = _Advanced(loop.dataloader, asked_for, epoch)
        self._first_batch = 0

    @staticmethod
    def _restore_random_states(state: Dict[str, Any]) -> None:
        states = state.get('random_states', [])
        if len(states) == get_world_size():
            restore_random_state(states[get_rank()])

    # Training and validation

    def before_train_epoch(self, runner) -> None:
        """Set the first batch of the epoch, and the random states of a resumed run."""
        loop, batches = runner.train_loop, runner.train_batches
        if batches is not None and isinstance(loop, loops.EpochBasedTrainLoop):
            batches.epoch, batches.first = runner.epoch, self._first_batch
            if self._first_batch:
                loop.run_iter = functools.partial(_run_later_iter, loop, self._first_batch)
        self._first_batch = 0
        if runner.continuation is not None:
            self._restore_random_states(runner.continuation)
            runner.continuation = None

    def after_train_epoch(self, runner) -> None:
        """The next epoch starts with its first batch."""
        runner.train_loop.__dict__.pop('run_iter', None)

    def before_val(self, runner) -> None:
        """Remember the random states, which validation must not change."""
        self._before_validation = random_state()

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Restore the random states, and note that this iteration is validated."""
        if self._before_validation is not None:
            restore_random_state(self._before_validation)
        self._validated_at = runner.iter


def _sampler(loader: DataLoader) -> Any:
    """The sampler that shuffles, with or without a batch sampler of its own."""
    return getattr(loader.batch_sampler, 'sampler', loader.sampler)


def _layout(runner) -> Dict[str, int]:
    """How an epoch is divided among processes and batches."""
    loader = runner.train_loop.dataloader
    batch_size = getattr(loader.batch_sampler, 'batch_size', None) or loader.batch_size or 1
    return dict(world_size=get_world_size(), total_batch=batch_size * get_world_size(),
                batches_per_epoch=len(loader))


def _warn_of_changes(runner, before: Dict[str, int], now: Dict[str, int]) -> None:
    rate = runner.optim_wrapper.get_lr()
    rate = next(iter(rate.values())) if isinstance(rate, dict) else rate
    runner.logger.warning(
        'this run differs from the interrupted one: '
        f'{before["world_size"]} process(es) before, {now["world_size"]} now; '
        f'{before["total_batch"]} images per step before, {now["total_batch"]} now; '
        f'{before["batches_per_epoch"]} steps per epoch before, {now["batches_per_epoch"]} now. '
        f'The learning rate stays that of the checkpoint ({rate[0]:g}), schedules by iteration '
        'continue from their own count, and the random numbers are new')


class _Advanced(loops._InfiniteDataloaderIterator):
    """An endless iterator over the batches after those of the interrupted run.

    The iteration-based loop wants to skip these when it resumes, but the batch sampler has skipped
    them already. mmengine (up to 0.10.7 at least) asks for them one by one, and onedl-mmengine
    (0.10.12) calls :meth:`skip_iter`.

    Args:
        loader: The data loader.
        seen: The number of batches that the loop will ask for.
        epoch: The epoch of the first batch.
    """

    def __init__(self, loader: DataLoader, seen: int, epoch: int) -> None:
        super().__init__(loader)
        self._epoch = epoch
        self._seen = seen
        # onedl-mmengine starts it with the first batch. Starting draws a random number, so it
        # must come before the random states are restored.
        if self._iterator is None:
            self._iterator = iter(loader)

    def skip_iter(self, num_iters: int) -> None:
        """Skip nothing: the batch sampler has done it."""

    def __next__(self) -> Any:
        if self._seen:
            self._seen -= 1
            return None
        return super().__next__()


def _run_later_iter(loop: loops.EpochBasedTrainLoop, first: int, idx: int, data_batch) -> None:
    """The loop's ``run_iter`` in an epoch that started with batch ``first``."""
    type(loop).run_iter(loop, idx + first, data_batch)
