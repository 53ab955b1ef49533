"""One self-contained HTML page about one or several training runs."""
from .page import write_report
from .runs import NoRunError, Run, read_run

__all__ = ['NoRunError', 'Run', 'read_run', 'write_report']
