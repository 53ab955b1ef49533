"""Hooks; importing this package registers them in MMEngine's registries."""
from .finite_loss import DivergedError, FiniteLossHook
from .safe_checkpoint import SafeCheckpointHook

__all__ = ['DivergedError', 'FiniteLossHook', 'SafeCheckpointHook']
