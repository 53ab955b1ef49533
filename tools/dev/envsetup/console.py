"""What the set-up prints."""
from __future__ import annotations

import sys
import time


def stop(message: str) -> None:
    """Exit with a message that says what to do."""
    sys.exit(f'setup: {message}')


def say(message: str) -> None:
    """Print a message."""
    print(f'setup: {message}', file=sys.stderr, flush=True)


class Step:
    """A numbered step of the setup, which prints when it starts and ends."""

    total = 4
    count = 0

    def __init__(self, title: str) -> None:
        Step.count += 1
        self.title = f'[{Step.count}/{Step.total}] {title}'

    def skip(self, reason: str) -> None:
        """Print why the step is skipped."""
        say(f'{self.title}: {reason}')

    def __enter__(self) -> Step:
        say(self.title)
        self.start = time.time()
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            say(f'{self.title}: done in {time.time() - self.start:.0f} s')
