"""A checkpoint hook that loses nothing, and runs that go on where they stopped."""
import functools
import os.path as osp
import signal
from collections import deque
from pathlib import Path
from typing import Any, Dict, List, Optional

import mmengine.runner.loops as loops
from mmengine.dataset import InfiniteSampler
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from torch import Tensor
from torch.utils.data import DataLoader

from mmrla.datasets.errors import name_errors
from mmrla.engine.randomness import make_repeatable, random_state, restore_random_state
from mmrla.engine.resume import CONTINUATION, POINTER, claim
from mmrla.weights.writing import SaveError, explain, remove_leftovers, write_file

from .stop_signals import StopSignals

INTERRUPTED = 'interrupted_ckpt'


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook``, safe at every moment and exact when resumed.

    - A checkpoint appears whole (:mod:`mmrla.safe_save`), then it becomes the
      last one, then older ones are removed.
    - It holds all that the continuation depends on: besides what mmengine
      saves, the random states of every process and the place in the epoch.
    - Every sample is augmented from a seed of its own
      (:class:`mmrla.randomness.SeededItems`).
    - Ctrl-C and SIGTERM save, then leave.

    Args:
        *args: As for mmengine's ``CheckpointHook``.
        save_on_signal: Whether Ctrl-C and SIGTERM save before they end the run.
        **kwargs: As for mmengine's ``CheckpointHook``.
    """

    def __init__(self, *args, save_on_signal: bool = True, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.signals = StopSignals() if save_on_signal else None
        self.run: Optional[str] = None
        self._continuation: Optional[Dict[str, Any]] = None
        self._of_processes: Dict[str, List[Dict[str, Any]]] = {}
        self._batches = None
        self._first_batch = 0
        self._validated = False
        self._due = False
        self._saved_iteration = -1
        self._before_validation: Optional[Dict[str, Any]] = None

    # Starting and going on

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Keep what a resumed run goes on with."""
        if runner._resume:
            self._continuation = checkpoint.get(CONTINUATION) or {}

    def before_train(self, runner) -> None:
        """Open the folder, find the place in the epoch and make the loader repeatable."""
        if self._continuation is not None and is_main_process():
            # before mmengine removes what the checkpoint says is outdated
            self._point_to(runner, str(runner._load_from))
        super().before_train(runner)
        self._stay_in_folder(runner)
        state = self._continuation or {}
        self.run = self._claim(runner, state.get('run'))
        self._seed = self._data_seed(runner, state)
        loader = runner.train_loop.dataloader
        if isinstance(loader, DataLoader) and loader.batch_sampler is not None:
            self._batches = make_repeatable(loader, self._seed)
        if self.signals is not None:
            self.signals.install()
            self.signals.shield_workers(loader)
        if self._continuation is not None:
            self._find_place(runner, state)
            self._restore_buffers(runner, state.get('buffers', []))
        if isinstance(runner.train_loop, loops.IterBasedTrainLoop):
            self._restart_iterator(runner.train_loop)
        self._validate_if_due(runner, state)

    def _stay_in_folder(self, runner) -> None:
        """Never touch the files of the work dir that this one was copied from."""
        last = runner.message_hub.runtime_info.get('last_ckpt')
        if last and self._continuation is not None:
            self.last_ckpt = self._path(osp.basename(last))
        names = [f'best_ckpt_{key}' for key in getattr(self, 'best_ckpt_path_dict', {})]
        for name in ('best_ckpt', *names):
            path = runner.message_hub.runtime_info.get(name)
            if path:
                path = self._path(osp.basename(path))
                runner.message_hub.update_info(name, path)
                if name == 'best_ckpt':
                    self.best_ckpt_path = path
                else:
                    self.best_ckpt_path_dict[name.removeprefix('best_ckpt_')] = path

    def _claim(self, runner, run: Optional[str]) -> Optional[str]:
        """Begin or go on with a run in the work dir."""
        if not is_main_process():
            return None
        try:
            if isinstance(self.file_backend, LocalBackend):
                remove_leftovers(Path(self.out_dir))
            return claim(Path(runner.work_dir), run)
        except OSError as error:
            raise SaveError(explain(error, runner.work_dir)) from error

    @staticmethod
    def _data_seed(runner, state: Dict[str, Any]) -> int:
        """The seed of the data, a resumed run's if there is one.

        mmengine builds the sampler before it knows the seed of a resumed run.
        """
        sampler = _sampler(runner.train_loop.dataloader)
        seed = state.get('seed', getattr(sampler, 'seed', None))
        seed = runner.seed if seed is None else seed
        if hasattr(sampler, 'seed'):
            sampler.seed = seed
        return int(seed)

    def _find_place(self, runner, state: Dict[str, Any]) -> None:
        """Go to the batch after the last one that was seen."""
        loop, now = runner.train_loop, self._layout(runner)
        before = {key: state.get(key, value) for key, value in now.items()}
        if isinstance(loop, loops.IterBasedTrainLoop):
            self._first_batch = loop._iter
        else:
            batch = loop._iter - loop._epoch * before['batches_per_epoch']
            batch = batch * before['total_batch'] // now['total_batch']
            self._first_batch = max(0, min(batch, now['batches_per_epoch']))
            loop._iter = loop._epoch * now['batches_per_epoch'] + self._first_batch
        if self._first_batch:
            runner.logger.info(f'goes on after batch {self._first_batch} of '
                               f'{now["batches_per_epoch"]}; their images are not loaded again')
        if before != now:
            self._say_what_changes(runner, before, now)

    @staticmethod
    def _restore_buffers(runner, buffers: List[Dict[str, Tensor]]) -> None:
        """Put back what this process's norms have seen; a checkpoint's weights have rank 0's."""
        if len(buffers) != get_world_size():
            return
        for name, buffer in runner.model.named_buffers():
            if name in buffers[get_rank()]:
                buffer.copy_(buffers[get_rank()][name])

    def _layout(self, runner) -> Dict[str, int]:
        """How an epoch is divided among processes and batches."""
        loader = runner.train_loop.dataloader
        batch_size = getattr(loader.batch_sampler, 'batch_size', None) or loader.batch_size or 1
        return dict(world_size=get_world_size(), total_batch=batch_size * get_world_size(),
                    batches_per_epoch=len(loader))

    @staticmethod
    def _say_what_changes(runner, before: Dict[str, int], now: Dict[str, int]) -> None:
        rate = runner.optim_wrapper.get_lr()
        rate = next(iter(rate.values())) if isinstance(rate, dict) else rate
        runner.logger.warning(
            'this is not the run that was interrupted: '
            f'{before["world_size"]} process(es) then, {now["world_size"]} now; '
            f'{before["total_batch"]} images a step then, {now["total_batch"]} now; '
            f'{before["batches_per_epoch"]} steps an epoch then, {now["batches_per_epoch"]} now. '
            f'The learning rate stays the checkpoint\'s ({rate[0]:g}), schedules by iteration go '
            'on from their own count, and the random numbers are new ones')

    def _restart_iterator(self, loop: loops.IterBasedTrainLoop) -> None:
        """Begin the endless iterator anew: mmengine began it before the loader was ready."""
        sampler = _sampler(loop.dataloader)
        first = self._first_batch
        if isinstance(sampler, InfiniteSampler):
            sampler.indices = sampler._indices_of_rank()
            epoch = 0
        else:
            epoch, first = divmod(first, len(loop.dataloader))
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
        self._batches.epoch, self._batches.first = 0, first
        loop.dataloader_iterator = _Advanced(loop.dataloader, loop._iter, epoch)
        self._first_batch = 0

    def _validate_if_due(self, runner, state: Dict[str, Any]) -> None:
        """Run the validation that a checkpoint was saved just before."""
        loop = runner.train_loop
        if (state.get('validated', True) or runner.val_loop is None or self._first_batch
                or not isinstance(loop, loops.EpochBasedTrainLoop)):
            return
        loop._decide_current_val_interval()
        epoch = loop._epoch
        if epoch >= loop.val_begin and (
                epoch % loop.val_interval == 0 or epoch == loop._max_epochs):
            runner.val_loop.run()

    def before_train_epoch(self, runner) -> None:
        """Say which batch comes first, and put the random states back."""
        loop = runner.train_loop
        if self._batches is not None and isinstance(loop, loops.EpochBasedTrainLoop):
            self._batches.epoch, self._batches.first = runner.epoch, self._first_batch
            if self._first_batch:
                loop.run_iter = functools.partial(_run_later_iter, loop, self._first_batch)
        states = (self._continuation or {}).get('random_states', [])
        if len(states) == get_world_size():
            restore_random_state(states[get_rank()])
        self._continuation, self._first_batch = None, 0

    # Saving

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Save by iterations, and when a signal came."""
        if not self.by_epoch:
            self._due |= self.every_n_train_iters(runner, self.interval, self.save_begin) or (
                self.save_last and self.is_last_train_iter(runner))
        stop = self.signals.agreed() if self.signals is not None else 0
        if not (self._due or stop) or self._is_accumulating(runner):
            return
        if self._due:
            runner.logger.info(f'Saving checkpoint at {runner.iter + 1} iterations')
            self._due = False
            self._save_checkpoint(runner)
        if stop:
            self._save_interrupted(runner, dict(epoch=runner.epoch, iter=runner.iter + 1))
            self._leave(runner, stop)

    @staticmethod
    def _is_accumulating(runner) -> bool:
        """Whether gradients wait for a step; they are not part of a checkpoint."""
        wrapper = runner.optim_wrapper
        count = getattr(wrapper, '_accumulative_counts', 1)
        return count > 1 and wrapper._inner_count % count != 0 and \
            wrapper._inner_count != wrapper._max_counts

    def after_train_epoch(self, runner) -> None:
        """Save by epochs."""
        runner.train_loop.__dict__.pop('run_iter', None)
        self._validated = False
        super().after_train_epoch(runner)

    def before_val(self, runner) -> None:
        """Remember the random states, which validation must not change."""
        self._before_validation = random_state()
        name_errors(runner.val_loop.dataloader)
        if self.signals is not None:
            self.signals.shield_workers(runner.val_loop.dataloader)

    def before_test(self, runner) -> None:
        """Let errors of the data name the image."""
        name_errors(runner.test_loop.dataloader)

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Leave on a signal if nothing would be lost.

        Several processes may have different numbers of batches to validate, so
        that they can agree only at the end.
        """
        if self.signals is None or self._saved_iteration < 0 or get_world_size() > 1:
            return
        if self._saved_iteration == runner.iter and self.signals.received:
            self._leave(runner, self.signals.received)

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Save the best checkpoint, and leave if a signal came."""
        if self._before_validation is not None:
            restore_random_state(self._before_validation)
        if not hasattr(self, 'file_backend'):  # validation alone
            return
        self._validated = True
        super().after_val_epoch(runner, metrics)
        stop = self.signals.agreed() if self.signals is not None else 0
        if stop:
            self._save_interrupted(runner, dict(epoch=runner.epoch, iter=runner.iter))
            self._leave(runner, stop)

    def _save_interrupted(self, runner, meta: Dict[str, int]) -> None:
        """Save at any iteration, unless that was just done."""
        if self._saved_iteration == meta['iter']:
            return
        name = f'iter_{meta["iter"]}.pth'
        runner.message_hub.update_info(INTERRUPTED, name)
        self._save(runner, name, meta)

    def _leave(self, runner, number: int) -> None:
        name = signal.Signals(number).name
        runner.logger.info(f'ends on {name}; saved as {self.last_ckpt}. Go on with --resume')
        self.signals.remove()
        raise SystemExit(128 + number)

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        """Save, point to it, and only then remove what is no longer wanted."""
        outdated = self._remember(runner, step)
        interrupted = runner.message_hub.runtime_info.pop(INTERRUPTED, None)
        self._save(runner, self.filename_tmpl.format(step), meta)
        if interrupted and interrupted != self.filename_tmpl.format(step):
            self._remove(self._path(interrupted))
        for old in outdated:
            self._remove(self._path(self.filename_tmpl.format(old)))

    def _remember(self, runner, step: int) -> List[int]:
        """Add a checkpoint to those that are kept; which ones to remove for it.

        The checkpoint itself still names these: if the process ends before
        they are removed, the resumed one removes them.
        """
        if self.max_keep_ckpts <= 0:
            return []
        kept = [old for old in self.keep_ckpt_ids if old != step] + [step]
        self.keep_ckpt_ids = deque(kept, self.max_keep_ckpts)
        runner.message_hub.update_info('keep_ckpt_ids', kept)
        return kept[:-self.max_keep_ckpts]

    def _save(self, runner, name: str, meta: dict) -> None:
        """Write a checkpoint and let the pointer name it."""
        self._of_processes = dict(random_states=all_gather_object(random_state()))
        if get_world_size() > 1:
            self._of_processes['buffers'] = all_gather_object(
                {name: buffer.cpu() for name, buffer in runner.model.named_buffers()})
        self.last_ckpt = self._path(name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir, name, self.file_client_args, save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler, meta=meta, by_epoch=self.by_epoch,
            backend_args=self.backend_args, **self.args)
        self._saved_iteration = meta['iter']
        self._of_processes = {}
        if is_main_process():
            self._point_to(runner, self.last_ckpt)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Add what the continuation depends on; the best checkpoint has none."""
        if self._of_processes:
            checkpoint[CONTINUATION] = dict(
                self._layout(runner), run=self.run, seed=self._seed, validated=self._validated,
                **self._of_processes)

    @staticmethod
    def _point_to(runner, path: str) -> None:
        pointer = Path(runner.work_dir) / POINTER
        try:
            write_file(pointer, lambda file: file.write(path.encode()))
        except OSError as error:
            raise SaveError(explain(error, str(pointer))) from error

    def _save_best_checkpoint(self, runner, metrics) -> None:
        """Save the best checkpoint, then remove the one before.

        mmengine removes first; it only knows what to remove if it remembers.
        """
        if not self.save_best:
            return
        before = self._take_best_paths()
        super()._save_best_checkpoint(runner, metrics)
        after = self._take_best_paths()
        self._put_best_paths({key: after.get(key) or path for key, path in before.items()} |
                             {key: path for key, path in after.items() if path})
        for key, path in before.items():
            if path and after.get(key) and after[key] != path:
                self._remove(path)
                if is_main_process():
                    runner.logger.info(f'The previous best checkpoint {path} is removed')

    def _take_best_paths(self) -> Dict[str, Optional[str]]:
        """The best checkpoints by metric, forgotten."""
        if hasattr(self, 'best_ckpt_path_dict'):
            paths = dict(self.best_ckpt_path_dict)
            self.best_ckpt_path_dict = dict.fromkeys(paths)
        else:
            paths = {'': self.best_ckpt_path}
            self.best_ckpt_path = None
        return paths

    def _put_best_paths(self, paths: Dict[str, Optional[str]]) -> None:
        if hasattr(self, 'best_ckpt_path_dict'):
            self.best_ckpt_path_dict = paths
        else:
            self.best_ckpt_path = paths['']

    def _path(self, name: str) -> str:
        return self.file_backend.join_path(self.out_dir, name)

    def _remove(self, path: str) -> None:
        if not is_main_process():
            return
        if self.file_backend.isfile(path):
            self.file_backend.remove(path)
        elif self.file_backend.isdir(path):  # of deepspeed
            self.file_backend.rmtree(path)

    def after_train(self, runner) -> None:
        """Publish, and give the signals back."""
        super().after_train(runner)
        if self.signals is not None:
            self.signals.remove()


class _Advanced(loops._InfiniteDataloaderIterator):
    """An endless iterator whose first batches were seen before and are not loaded.

    mmengine's loop by iterations takes them one by one when it resumes.
    """

    def __init__(self, loader: DataLoader, seen: int, epoch: int) -> None:
        super().__init__(loader)
        self._epoch = epoch
        self._seen = seen

    def __next__(self) -> Any:
        if self._seen:
            self._seen -= 1
            return None
        return super().__next__()


def _sampler(loader: DataLoader) -> Any:
    """The sampler that shuffles, with or without a batch sampler of its own."""
    return getattr(loader.batch_sampler, 'sampler', loader.sampler)


def _run_later_iter(loop: loops.EpochBasedTrainLoop, first: int, idx: int, data_batch) -> None:
    """A loop's ``run_iter`` in an epoch that began with batch ``first``."""
    type(loop).run_iter(loop, idx + first, data_batch)
