"""One self-contained HTML page about one or several training runs."""
from .page import write_report
from .runs import Run, RunError, read_run

__all__ = ['Run', 'RunError', 'read_run', 'write_report']
