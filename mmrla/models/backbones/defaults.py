"""Whose defaults a backbone uses.

mmdet's and mmpretrain's backbones of one name have different defaults: mmdet's ResNet
keeps its norms in eval mode and returns four stages, mmpretrain's trains its norms and
returns the last stage. A config of either package relies on its own.
"""
from typing import Any, Dict, NamedTuple, Optional, Tuple

from mmengine.logging import print_log

from mmrla.models.layers.checks import check_choice
from mmrla.scope import scope_of_run

PACKAGES = ('mmdet', 'mmpretrain')


class Default(NamedTuple):
    """The default of an argument in each package."""
    mmdet: Any
    mmpretrain: Any


def choose_defaults(package: Optional[str] = None) -> str:
    """The package whose defaults apply.

    Args:
        package: ``'mmdet'`` or ``'mmpretrain'``. By default mmpretrain in its own default
            scope, and mmdet everywhere else.
    """
    check_choice('defaults', package, (None, *PACKAGES))
    return package or ('mmpretrain' if scope_of_run() == 'mmpretrain' else 'mmdet')


def fill_defaults(backbone: str, package: Optional[str], table: Dict[str, Default],
                  **given: Any) -> Tuple[Any, ...]:
    """Replace the arguments that are None, and log the values that depend on the package.

    Args:
        backbone: The name of the backbone, for the log.
        package: As for :func:`choose_defaults`.
        table: The defaults of each argument.
        **given: The arguments.

    Returns:
        tuple: The values, in the order of the arguments.
    """
    chosen = choose_defaults(package)
    filled = {name: getattr(table[name], chosen) for name, value in given.items()
              if value is None and table[name].mmdet != table[name].mmpretrain}
    reason = f'defaults={package!r}' if package else f'the default scope is {scope_of_run()!r}'
    if filled and (package or scope_of_run() in PACKAGES):
        listed = ', '.join(f'{name}={value!r}' for name, value in filled.items())
        print_log(f"{backbone}: {listed} by {chosen}'s defaults ({reason}; the key defaults "
                  'of the backbone selects them)', 'current')
    return tuple(filled.get(name, value) for name, value in given.items())
