"""Which distribution of mmengine, mmcv, mmdet and mmpretrain is installed.

OpenMMLab and OneDL publish packages with the same import names. An environment has one of the
two. This module uses the standard library only, so that it works where a package is missing.
"""
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, Optional

# Import name: the distributions of OpenMMLab and of OneDL.
DISTRIBUTIONS = dict(
    mmengine=('mmengine', 'onedl-mmengine'), mmcv=('mmcv', 'onedl-mmcv'),
    mmdet=('mmdet', 'onedl-mmdetection'), mmpretrain=('mmpretrain', 'onedl-mmpretrain'))
# What `import mmrla` imports.
REQUIRED = ('mmengine', 'mmcv')
SET_UP = ('python3 tools/setup_env.py in a clone of mmrla installs them; --stack onedl installs '
          'OneDL\'s instead of OpenMMLab\'s')


def installed(distribution: str) -> Optional[str]:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def found_versions(package: str) -> Dict[str, str]:
    """The installed distributions of a package, with their versions."""
    versions = {name: installed(name) for name in DISTRIBUTIONS[package]}
    return {name: found for name, found in versions.items() if found is not None}


def check() -> None:
    """Raise an ImportError in one line if the packages cannot work, warn if they work in part."""
    _refuse_two_stacks()
    missing = [name for name in REQUIRED if _is_missing(name)]
    if missing:
        raise ImportError(f'mmrla needs {" and ".join(missing)}, which {_are(missing)} not '
                          f'installed; {SET_UP}')
    if _lacks_operators():
        warnings.warn('mmcv is installed without its compiled operators, which detectors need; '
                      f'{SET_UP}, and compiles the operators', stacklevel=3)


def _refuse_two_stacks() -> None:
    """Refuse two distributions whose files have the same names, so that one overwrote the other."""
    for package in DISTRIBUTIONS:
        found = found_versions(package)
        if len(found) > 1:
            both = ' and '.join(f'{name} {number}' for name, number in found.items())
            raise ImportError(
                f'{both} are both installed, and each overwrites files of the other; run '
                f'pip uninstall -y {" ".join(found)}, then install one of them again')


def _is_missing(package: str) -> bool:
    """Whether a package cannot be imported; a folder of its name without a module is none."""
    spec = find_spec(package)
    return spec is None or spec.origin is None


def _lacks_operators() -> bool:
    """Whether mmcv has no compiled operators, although its distribution should have them.

    A plain ``pip install onedl-mmcv`` builds mmcv in an environment without torch, and leaves
    them out without a message. mmcv-lite never has them.
    """
    folder = Path(find_spec('mmcv').origin).parent
    return installed('mmcv-lite') is None and not any(folder.glob('_ext*'))


def _are(names: list) -> str:
    return 'is' if len(names) == 1 else 'are'
