"""Hooks; importing this package registers them in MMEngine's HOOKS."""
from .checkpoint import SafeCheckpointHook
from .continuation import ContinuationHook
from .finite_loss import FiniteLossHook
from .pending_validation import PendingValidationHook
from .stop_signal import StopSignalHook

__all__ = ['ContinuationHook', 'FiniteLossHook', 'PendingValidationHook', 'SafeCheckpointHook',
           'StopSignalHook']
