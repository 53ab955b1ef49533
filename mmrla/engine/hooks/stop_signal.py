"""Save and leave on Ctrl-C, SIGTERM and SIGUSR1, which clusters send before they end a job."""
import signal
from typing import Dict, Optional

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmrla.weights.background import WRITER

from .checkpoint import SafeCheckpointHook, is_accumulating


@HOOKS.register_module()
class StopSignalHook(Hook):
    """Save a checkpoint when a signal arrives, then end the run.

    All processes save after the same step. A second signal acts at once. The exit code is
    128 plus the signal's number.
    """

    priority = 95  # after SafeCheckpointHook, which may save this step anyway

    def before_train(self, runner) -> None:
        """Install the signal handlers."""
        runner.stop_signals.install()

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Save and leave after a complete step."""
        number = runner.stop_signals.agreed()
        if number and not is_accumulating(runner):
            self._leave(runner, number, dict(epoch=runner.epoch, iter=runner.iter + 1))

    def after_val_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Leave within a validation if nothing is lost.

        The processes may have different numbers of batches to validate, so several
        processes can only agree at the end.
        """
        hook = _checkpoint_hook(runner)
        number = runner.stop_signals.received
        if number and get_world_size() == 1 and hook and hook.saved_iteration == runner.iter:
            self._leave(runner, number)

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Save and leave after a validation."""
        if runner.stop_signals.is_installed:
            number = runner.stop_signals.agreed()
            if number:
                self._leave(runner, number, dict(epoch=runner.epoch, iter=runner.iter))

    def after_train(self, runner) -> None:
        """Restore the previous signal handlers."""
        runner.stop_signals.remove()

    @staticmethod
    def _leave(runner, number: int, meta: Optional[Dict[str, int]] = None) -> None:
        hook, saved = _checkpoint_hook(runner), ''
        if hook is not None:
            if meta is not None:
                hook.save_interrupted(runner, meta)
            WRITER.wait()
            runner.stop_signals.wait_for_all()
            saved = f'; saved {hook.last_ckpt}. Continue with --resume'
        runner.logger.info(f'stopped by {signal.Signals(number).name}{saved}')
        runner.stop_signals.remove()
        raise SystemExit(128 + number)


def _checkpoint_hook(runner) -> Optional[SafeCheckpointHook]:
    return next((hook for hook in runner.hooks if isinstance(hook, SafeCheckpointHook)), None)
