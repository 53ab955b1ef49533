"""Errors of checkpoint files. Each message names the file, the reason and the fix."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used."""


class SaveError(CheckpointError):
    """A checkpoint, or a file beside it, cannot be written."""
