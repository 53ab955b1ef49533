"""Errors of exporting and of exported files."""


class ExportError(ValueError):
    """A model or a setting that cannot be exported."""


class MissingPackageError(ImportError):
    """A package of the extra ``onnx`` is not installed."""
