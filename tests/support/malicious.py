"""An object that runs code when it is unpickled."""
import os
from pathlib import Path


class Malicious:
    """Create a file when the object is unpickled.

    Args:
        trace: The file.
    """

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f'touch {self.trace}',)
