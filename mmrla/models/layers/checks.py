"""Checks of config values: the error names the wrong value and the fix."""
from typing import Any, Collection


def check_choice(name: str, value: Any, choices: Collection) -> None:
    """``value`` must be one of ``choices``."""
    # Compared with ==: a list or dict from a config is not hashable.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        listed = ', '.join(map(repr, choices))
        raise ValueError(f'{name}={value!r} is not known; choose one of: {listed}')


def check_keys(name: str, cfg: Any, allowed: Collection[str]) -> None:
    """``cfg`` must be a dict with no other keys than ``allowed``."""
    listed = ', '.join(allowed)
    if not isinstance(cfg, dict):
        raise ValueError(f'{name}={cfg!r} must be None or a dict with keys among: {listed}')
    for key in cfg:
        if key not in allowed:
            raise ValueError(f'{name} has no key {key!r} (value {cfg[key]!r}); '
                             f'its keys are: {listed}')


def check_positive_int(name: str, value: Any) -> None:
    """``value`` must be a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f'{name}={value!r} must be a whole number of 1 or more')


def check_sequence(name: str, value: Any, length: int = 0) -> None:
    """``value`` must be a list, tuple or range, of ``length`` entries if that is not 0."""
    if not isinstance(value, (list, tuple, range)):
        raise ValueError(f'{name}={value!r} must be a list or tuple')
    if length and len(value) != length:
        raise ValueError(f'{name}={value!r} must have num_stages={length} entries')


def check_extra_channels(value: Any) -> None:
    """The channels added to the width of every stage must be 0 or more."""
    if isinstance(value, bool) or value != 0:
        check_positive_int('extra_channels', value)


def check_rate(name: str, value: Any) -> None:
    """``value`` must be a number from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f'{name}={value!r} must be a number from 0 to below 1')
