"""How a run trains, saves and resumes; importing this package registers the hooks."""
from . import hooks

__all__ = ['hooks']
