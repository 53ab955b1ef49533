"""What the commands show on the terminal: one console, its progress bars and tables."""
from typing import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# Names of classes and files are printed as they are, brackets and colons included.
PLAIN = dict(highlight=False, markup=False, emoji=False)
SHOWN_ROWS = 12  # of a table with a row for each class
# Progress goes to stderr, so that stdout can be piped.
console = Console(**PLAIN)
error_console = Console(stderr=True, **PLAIN)


def say(text: str) -> None:
    """Print a line; the terminal wraps it, so that paths can be copied whole."""
    console.print(text, soft_wrap=True)


class SpeedColumn(ProgressColumn):
    """Items per second.

    Args:
        unit: The name of the items.
    """

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The speed so far."""
        speed = task.finished_speed or task.speed
        return Text('' if speed is None else f'{speed:.1f} {self.unit}/s')


def progress_bar(unit: str = 'images') -> Progress:
    """A progress bar with counts, speed and remaining time.

    Args:
        unit: The name of the items.
    """
    return Progress(
        TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), SpeedColumn(unit),
        TimeElapsedColumn(), TextColumn('left'), TimeRemainingColumn(), console=error_console)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table; the first column is text, the others are numbers.

    Args:
        title: Shown above it.
        columns: The headings.
        rows: The cells.
    """
    result = Table(title=title, title_justify='left', header_style='bold')
    for number, column in enumerate(columns):
        result.add_column(column, justify='right' if number else 'left')
    for row in rows:
        result.add_row(*map(str, row))
    return result
