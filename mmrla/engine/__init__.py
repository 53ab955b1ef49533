"""How a run trains, saves and resumes.

Importing this package registers the runner and the hooks in MMEngine's registries.
"""
from .data_parallel import RepeatableDataParallel
from .errors import DivergedError, RunError
from .hooks import (
    ContinuationHook,
    FiniteLossHook,
    PendingValidationHook,
    SafeCheckpointHook,
    StopSignalHook,
)
from .runner import RLARunner

__all__ = ['ContinuationHook', 'DivergedError', 'FiniteLossHook', 'PendingValidationHook',
           'RLARunner', 'RepeatableDataParallel', 'RunError', 'SafeCheckpointHook',
           'StopSignalHook']
