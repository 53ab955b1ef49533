"""Run the validation that an interrupted run did not reach."""
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import loops


@HOOKS.register_module()
class PendingValidationHook(Hook):
    """Validate a checkpoint that was saved just before its validation.

    Without this validation the best checkpoint could be missed.
    """

    priority = 'LOWEST'  # after all other hooks are ready for a validation

    def before_train(self, runner) -> None:
        """Validate if the checkpoint that is resumed from should have been."""
        state = runner.continuation
        if state is None or state.get('validated', True) or runner.val_loop is None:
            return
        if _is_due(runner.train_loop):
            runner.val_loop.run()


def _is_due(loop) -> bool:
    """Whether a training loop validates at its present position."""
    loop._decide_current_val_interval()
    if isinstance(loop, loops.IterBasedTrainLoop):
        position, last = loop._iter, loop._max_iters
    elif loop._iter == loop._epoch * len(loop.dataloader):
        position, last = loop._epoch, loop._max_epochs
    else:  # within an epoch
        return False
    return position >= loop.val_begin and (position % loop.val_interval == 0 or position == last)
