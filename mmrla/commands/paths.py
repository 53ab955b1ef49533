"""The folders that hold the tools and the configs."""
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_CLONE = _PACKAGE.parent
_IS_CLONE = (_CLONE / 'tools/setup_env.py').is_file()
# A clone has tools/ and configs/ beside the package. A wheel carries them inside.
REPO = _CLONE if _IS_CLONE else _PACKAGE / '.mim'
CONFIGS = _CLONE / 'configs' if _IS_CLONE else _PACKAGE / 'zoo/.mim/configs/configs'
