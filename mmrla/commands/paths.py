"""The folder that holds ``configs/`` and ``tools/``."""
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_CLONE = _PACKAGE.parent
# A clone has the two folders beside the package; a wheel carries them in .mim.
REPO = _CLONE if (_CLONE / 'tools/setup_env.py').is_file() else _PACKAGE / '.mim'
