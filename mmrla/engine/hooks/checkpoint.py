"""Save checkpoints in an order that never leaves a run without one."""
import functools
import hashlib
import io
import os.path as osp
from collections import deque
from pathlib import Path
from typing import IO, Dict, List, Optional

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmrla.engine.work_dir import claim, lock, point_to
from mmrla.weights.background import WRITER
from mmrla.weights.reading import read_local
from mmrla.weights.writing import atomic_backend_args

# The message hub's entry for a checkpoint that a signal caused.
INTERRUPTED = 'interrupted_ckpt'
# The message hub's entry for the best checkpoints that are removed next.
OUTDATED_BEST = 'outdated_best_ckpts'


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook`` in a safe order.

    The new checkpoint is written first, then ``last_checkpoint`` names it, then
    older checkpoints are removed. On a local disk this happens in the background, from a
    copy, while the run goes on. The next save, the end of the run and a signal wait for
    it, and raise its error. ``RLARunner`` adds the state that an exact continuation needs.

    Args:
        *args: As for mmengine's ``CheckpointHook``.
        **kwargs: As for mmengine's ``CheckpointHook``.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.run: Optional[str] = None
        self.saved_iteration = -1
        self._is_due = False
        self._lock: Optional[IO[str]] = None

    def before_train(self, runner) -> None:
        """Open the folder, for a new run or for the one that is resumed."""
        if is_main_process() and not hasattr(runner, 'lock_work_dir'):  # not an RLARunner
            self._lock = lock(Path(runner.work_dir))
        resumed_from = getattr(runner, 'resumed_from', None)
        if resumed_from is not None and is_main_process():
            # before mmengine removes the checkpoints that this one lists as outdated
            point_to(Path(runner.work_dir), resumed_from)
        self._write_in_background(runner)
        super().before_train(runner)
        if resumed_from is not None:
            self._stay_in_folder(runner)
            self._remove_outdated_best(runner)
        if is_main_process():
            self.run = claim(Path(runner.work_dir), getattr(runner, 'resumed_run', None))

    def _write_in_background(self, runner) -> None:
        """Let a backend of a local disk write while the run goes on."""
        if self.file_client_args is None:
            folder = self.out_dir or runner.work_dir
            backend = get_file_backend(folder, backend_args=self.backend_args)
            self.backend_args = atomic_backend_args(
                self.backend_args, isinstance(backend, LocalBackend), 'atomic_background')

    def _stay_in_folder(self, runner) -> None:
        """Replace the paths of the work dir that this one was copied from."""
        last = runner.message_hub.runtime_info.get('last_ckpt')
        if last:
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

    def _remove_outdated_best(self, runner) -> None:
        """Remove what the interrupted run had no time to remove."""
        best = {osp.basename(path) for path in self._best_paths().values() if path}
        for name in runner.message_hub.runtime_info.pop(OUTDATED_BEST, ()):
            if name not in best:
                self._remove(self._path(name))

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Save by iterations, as soon as no gradients are accumulated."""
        if self.by_epoch:
            return
        self._is_due |= self.every_n_train_iters(runner, self.interval, self.save_begin) or (
            self.save_last and self.is_last_train_iter(runner))
        if self._is_due and not is_accumulating(runner):
            self._is_due = False
            runner.logger.info(f'Saving checkpoint at {runner.iter + 1} iterations')
            self._save_checkpoint(runner)

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Save the best checkpoint."""
        if hasattr(self, 'file_backend'):  # else this is a validation without training
            super().after_val_epoch(runner, metrics)

    def after_train(self, runner) -> None:
        """Publish the checkpoints, when they are complete."""
        WRITER.wait()
        super().after_train(runner)

    def save_interrupted(self, runner, meta: Dict[str, int]) -> None:
        """Save outside of the interval, unless this iteration was just saved.

        Args:
            runner: The runner.
            meta: The epoch and iteration of the checkpoint.
        """
        if self.saved_iteration == meta['iter']:
            return
        name = f'iter_{meta["iter"]}.pth'
        runner.message_hub.update_info(INTERRUPTED, name)
        self._save(runner, name, meta)

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        """Save, point to the file, and only then remove the outdated ones."""
        outdated = self._remember(runner, step)
        interrupted = runner.message_hub.runtime_info.pop(INTERRUPTED, None)
        self._save(runner, self.filename_tmpl.format(step), meta)
        if interrupted and interrupted != self.filename_tmpl.format(step):
            self._remove_later(self._path(interrupted))
        for old in outdated:
            self._remove_later(self._path(self.filename_tmpl.format(old)))

    def _remember(self, runner, step: int) -> List[int]:
        """Add a checkpoint to the ones that are kept; return the steps to remove.

        The checkpoint itself still lists the outdated ones. If the process ends
        before they are removed, the resumed one removes them.
        """
        if self.max_keep_ckpts <= 0:
            return []
        kept = [old for old in self.keep_ckpt_ids if old != step] + [step]
        self.keep_ckpt_ids = deque(kept, self.max_keep_ckpts)
        runner.message_hub.update_info('keep_ckpt_ids', kept)
        return kept[:-self.max_keep_ckpts]

    def _save(self, runner, name: str, meta: dict) -> None:
        """Write a checkpoint and let ``last_checkpoint`` name it."""
        WRITER.wait()  # two copies of a checkpoint would need twice the memory
        runner.call_hook('before_save_state')
        self.last_ckpt = self._path(name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.save_checkpoint(
            self.out_dir, name, self.file_client_args, save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler, meta=dict(meta, run=self.run),
            by_epoch=self.by_epoch, backend_args=self.backend_args, **self.args)
        self.saved_iteration = meta['iter']
        if is_main_process():
            WRITER.submit(functools.partial(point_to, Path(runner.work_dir), self.last_ckpt))

    def _save_best_checkpoint(self, runner, metrics) -> None:
        """Save the best checkpoint, then remove the previous one.

        mmengine removes the previous one first. It does so only for paths that it
        remembers, so they are taken away for the duration of its call.
        """
        if not self.save_best:
            return
        WRITER.wait()
        before = self._best_paths()
        self._put_best_paths(dict.fromkeys(before))
        # the call saves this in the checkpoint that lists the new best one
        runner.message_hub.update_info(
            OUTDATED_BEST, [osp.basename(path) for path in before.values() if path])
        super()._save_best_checkpoint(runner, metrics)
        after = self._best_paths()
        self._put_best_paths({key: after.get(key) or path for key, path in before.items()} |
                             {key: path for key, path in after.items() if path})
        for key, path in before.items():
            if path and after.get(key) and after[key] != path:
                self._remove_later(path)
                if is_main_process():
                    runner.logger.info(f'The previous best checkpoint {path} is removed')

    def _best_paths(self) -> Dict[str, Optional[str]]:
        """The best checkpoints by metric."""
        if hasattr(self, 'best_ckpt_path_dict'):
            return dict(self.best_ckpt_path_dict)
        return {'': getattr(self, 'best_ckpt_path', None)}

    def _put_best_paths(self, paths: Dict[str, Optional[str]]) -> None:
        if hasattr(self, 'best_ckpt_path_dict'):
            self.best_ckpt_path_dict = paths
        else:
            self.best_ckpt_path = paths['']

    def _publish_model(self, runner, ckpt_path: str) -> None:
        """Write the published keys to a file whose name ends in its sha256.

        mmengine writes in place, and hashes a pickle that is not the file.
        """
        checkpoint = read_local(ckpt_path)
        published = {key: checkpoint[key] for key in self.published_keys if key in checkpoint}
        buffer = io.BytesIO()
        torch.save(published, buffer)
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()[:8]
        path = f'{osp.splitext(ckpt_path)[0]}-{digest}.pth'
        runner.write_file(content, path, self.backend_args)
        runner.logger.info(f'{ckpt_path} is published to {path} with the keys {list(published)}')

    def _path(self, name: str) -> str:
        return self.file_backend.join_path(self.out_dir, name)

    def _remove_later(self, path: str) -> None:
        """Remove a file when the one that replaces it is complete."""
        WRITER.submit(functools.partial(self._remove, path))

    def _remove(self, path: str) -> None:
        if not is_main_process():
            return
        if self.file_backend.isfile(path):
            self.file_backend.remove(path)
        elif self.file_backend.isdir(path):  # a checkpoint of deepspeed
            self.file_backend.rmtree(path)


def is_accumulating(runner) -> bool:
    """Whether gradients wait for a step; a checkpoint does not contain them."""
    wrapper = runner.optim_wrapper
    count = getattr(wrapper, '_accumulative_counts', 1)
    return count > 1 and wrapper._inner_count % count != 0 and \
        wrapper._inner_count != wrapper._max_counts
