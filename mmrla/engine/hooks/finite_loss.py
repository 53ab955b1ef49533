"""Stop a run whose loss is no number any more, before it is saved."""
from typing import Any, Dict, List, Optional

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


class DivergedError(RuntimeError):
    """A loss or a weight is not finite; the message says where and what to try."""


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stop on a loss that is NaN or infinite.

    The losses are looked at without a wait for the GPU every ``interval``
    steps, on a CPU at every step, and in any case before a checkpoint is
    written: none ever holds the result of a bad step.

    Args:
        interval: After how many steps to look, on a GPU.
        patience: How many bad steps in a row are too many. By default 1, and
            20 with a loss scaler, which leaves such steps out by itself.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 20, patience: Optional[int] = None) -> None:
        for name, value in (('interval', interval), ('patience', patience)):
            if value is not None and value < 1:
                raise ValueError(f'{name}={value} must be 1 or more')
        self.interval = interval
        self.patience = patience
        self._in_a_row = 0

    def before_train(self, runner) -> None:
        """Find out how many bad steps to bear."""
        scaled = hasattr(runner.optim_wrapper, 'loss_scaler')
        self._limit = self.patience or (20 if scaled else 1)

    def after_train_iter(self, runner, batch_idx: int, data_batch: Any = None,
                         outputs: Optional[Dict[str, Any]] = None) -> None:
        """Look at the losses of a step."""
        loss = (outputs or {}).get('loss')
        if loss is None:
            return
        bad = ~torch.isfinite(torch.as_tensor(loss).detach()).all()
        self._in_a_row = (self._in_a_row + 1) * bad
        if not bad.is_cuda or self.every_n_inner_iters(batch_idx, self.interval):
            self._check(runner, outputs, data_batch)

    def _check(self, runner, outputs: Optional[Dict[str, Any]] = None,
               data_batch: Any = None) -> None:
        if int(self._in_a_row) >= self._limit:
            raise DivergedError(
                f'the loss is not finite in iteration {runner.iter + 1} of epoch '
                f'{runner.epoch + 1}{_describe(outputs, data_batch)}. Nothing of this was '
                'saved; the last checkpoint is good. Lower the learning rate '
                '(optim_wrapper.optimizer.lr), clip gradients '
                '(optim_wrapper.clip_grad.max_norm=10) or look at the data '
                '(tools/check_dataset.py), then go on with --resume')

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Refuse to save what a bad step has made."""
        if not hasattr(self, '_limit'):  # not training
            return
        self._check(runner)
        for name, value in checkpoint['state_dict'].items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise DivergedError(
                    f'{name} is not finite after iteration {runner.iter}: a gradient was '
                    'infinite. This was not saved; the last checkpoint is good. Lower the '
                    'learning rate (optim_wrapper.optimizer.lr) or clip gradients '
                    '(optim_wrapper.clip_grad.max_norm=10), then go on with --resume')


def _describe(outputs: Optional[Dict[str, Any]], data_batch: Any) -> str:
    """The losses of a step and the images that it saw, as far as they are known."""
    if outputs is None:
        return ''
    losses = ', '.join(f'{name}={float(value):g}' for name, value in outputs.items()
                       if 'loss' in name)
    images = _image_paths(data_batch)
    return f' ({losses}' + (f'; images: {", ".join(images)})' if images else ')')


def _image_paths(data_batch: Any) -> List[str]:
    samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else None
    return [str(sample.img_path) for sample in samples or () if 'img_path' in sample]
