"""Stop a run whose loss is NaN, infinite or absurdly large, before it is saved."""
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmrla.engine.errors import DivergedError

ADVICE = ('Lower the learning rate (optim_wrapper.optimizer.lr), clip gradients '
          '(optim_wrapper.clip_grad.max_norm=10){} and continue with --resume')


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Stop on a loss that is NaN, infinite or above ``max_loss``.

    On a CPU the loss is checked at every step. On a GPU it is checked every
    ``interval`` steps, without waiting for the GPU in between. It is always checked
    before a checkpoint is written, on all processes, so no checkpoint contains the result
    of a bad step.

    Args:
        interval: The number of steps between two checks on a GPU.
        patience: The number of consecutive bad steps that stops the run. By default
            1, and 20 with a loss scaler, which skips such steps by itself.
        max_loss: A larger loss is as bad as an infinite one. Its gradients can be finite and
            still destroy the weights.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 20, patience: Optional[int] = None,
                 max_loss: float = 1e10) -> None:
        for name, value in (('interval', interval), ('patience', patience),
                            ('max_loss', max_loss)):
            if value is not None and value < 1:
                raise ValueError(f'{name}={value} must be 1 or more')
        self.interval = interval
        self.patience = patience
        self.max_loss = max_loss
        self._in_a_row = 0

    def before_train(self, runner) -> None:
        """Set the limit of bad steps."""
        scaled = hasattr(runner.optim_wrapper, 'loss_scaler')
        self._limit = self.patience or (20 if scaled else 1)

    def after_train_iter(self, runner, batch_idx: int, data_batch: Any = None,
                         outputs: Optional[Dict[str, Any]] = None) -> None:
        """Check the loss of a step."""
        loss = (outputs or {}).get('loss')
        if loss is None:
            return
        bad = ~(torch.as_tensor(loss).detach().abs() <= self.max_loss).all()  # NaN is bad, too
        self._in_a_row = (self._in_a_row + 1) * bad
        if not bad.is_cuda or self.every_n_inner_iters(batch_idx, self.interval):
            self._check(runner, outputs, data_batch)

    def _check(self, runner, outputs: Optional[Dict[str, Any]] = None,
               data_batch: Any = None) -> None:
        if int(self._in_a_row) >= self._limit:
            raise DivergedError(
                f'the loss is not finite or above {self.max_loss:g} in iteration '
                f'{runner.iter + 1} of epoch {runner.epoch + 1}{_describe(outputs, data_batch)}. '
                'This step was not saved; the last checkpoint is valid. '
                + ADVICE.format(', check the data (tools/check_dataset.py)'))

    def before_save_state(self, runner) -> None:
        """Refuse to save after a bad step of any process; all processes call this."""
        worst = torch.as_tensor(self._in_a_row).clone()
        all_reduce(worst, 'max')
        self._in_a_row = worst
        self._check(runner)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        """Refuse to save values that are not finite."""
        if not hasattr(self, '_limit'):  # not training
            return
        self._check(runner)
        values = {**checkpoint['state_dict'], 'optimizer': checkpoint.get('optimizer')}
        for name, value in _tensors(values):
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise DivergedError(
                    f'{name} is not finite after iteration {runner.iter}: a gradient was '
                    'infinite or too large. This step was not saved; the last checkpoint is '
                    'valid. ' + ADVICE.format(''))


def _tensors(value: Any, name: str = '') -> Iterator[Tuple[str, torch.Tensor]]:
    """All tensors in nested dicts, with their names."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f'{name}.{key}' if name else str(key))


def _describe(outputs: Optional[Dict[str, Any]], data_batch: Any) -> str:
    """The losses of a step and its images, as far as they are known."""
    if outputs is None:
        return ''
    losses = ', '.join(f'{name}={float(value):g}' for name, value in outputs.items()
                       if 'loss' in name)
    images = _image_paths(data_batch)
    return f' ({losses}' + (f'; images: {", ".join(images)})' if images else ')')


def _image_paths(data_batch: Any) -> List[str]:
    samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else None
    return [str(sample.img_path) for sample in samples or () if 'img_path' in sample]
