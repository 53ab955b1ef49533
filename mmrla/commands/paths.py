"""The folder that holds ``configs/`` and ``tools/``."""
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_IN_WHEEL = _PACKAGE / '.mim'
# A wheel carries the two folders in .mim; a clone has them beside the package.
REPO = _IN_WHEEL if _IN_WHEEL.exists() else _PACKAGE.parent
