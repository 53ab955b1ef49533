"""Spelling mistakes in configs: settings and arguments that nothing reads.

mmengine ignores a top-level setting that it does not know, and ``--cfg-options`` adds
whatever path it is given. The functions here raise :class:`ConfigError` with the nearest
name instead.
"""
import contextlib
import difflib
import inspect
from importlib import import_module
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.registry import root as registries
from mmengine.runner import Runner
from torch.utils.data import DataLoader

# What mmengine, mmdet and mmrla read at the top level of a config, beside the arguments of
# the runner.
TOP_LEVEL = ('custom_imports', 'runner_type', 'model_wrapper_cfg', 'find_unused_parameters',
             'sync_bn', 'compile', 'activation_checkpointing', 'efficient_conv_bn_eval',
             'tta_model', 'tta_pipeline', 'num_batch_per_epoch', 'backend_args', 'strategy')
# Below these settings of a config are modules that a registry builds.
BUILT = ('model', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg',
         'test_cfg', 'optim_wrapper', 'param_scheduler', 'val_evaluator', 'test_evaluator',
         'default_hooks', 'custom_hooks', 'visualizer', 'log_processor')
# Settings whose `type` is resolved by other code than a registry, or with other arguments.
SPECIAL = ('norm_cfg', 'act_cfg', 'conv_cfg', 'init_cfg', 'upsample_cfg', 'padding_cfg',
           'order_cfg', 'nms', 'roi_layer', 'attention', 'rla', 'backend_args', 'loss_scale',
           'plugins', 'dcn', 'paramwise_cfg', 'mask_size', 'collate_fn', 'model_wrapper_cfg',
           'adapt_cfg', 'augments')
INTERNAL = ('type', '_scope_', '_delete_', 'priority')
# What the builder of a module takes out of its config before the module is built.
BUILDERS = dict(optim_wrapper=('paramwise_cfg', 'constructor'))
NEAR = 0.75
SHOWN = 12  # arguments that a message lists


class ConfigError(ValueError):
    """A setting that cannot be right; the message names it and the fix."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.65) -> str:
    """Return advice that begins with a semicolon, or an empty text."""
    near = difflib.get_close_matches(str(name), [str(item) for item in known], 1, cutoff)
    return f'; did you mean {near[0]}?' if near else ''


def unknown_argument(module: Union[str, Callable], name: str,
                     accepted: Optional[Set[str]]) -> str:
    """Say that a module has no argument of a name, and which it has.

    Args:
        module: The class or function, or its name.
        name: The unknown argument.
        accepted: The arguments that it has, if they are known.
    """
    text = f'{getattr(module, "__name__", module)} has no argument {name}'
    if not accepted:
        return text
    known = sorted(accepted - {'self'})
    others = f'; it has {", ".join(known[:SHOWN])}{", ..." if len(known) > SHOWN else ""}'
    return text + (did_you_mean(name, known) or others)


def check_top_level(cfg: Config) -> None:
    """Refuse a top-level name that looks like a setting of the runner but is none.

    Configs hold variables of their own, such as ``data_root``, so an unknown name alone is
    no mistake.
    """
    known = top_level_names()
    for name in cfg:
        near = difflib.get_close_matches(name, known, 1, 0.85)
        if name not in known and near and not name.endswith('_pipeline'):
            raise ConfigError(f'config: {name} is not a setting; did you mean {near[0]}?')


def top_level_names() -> List[str]:
    """Return the settings that a runner reads."""
    return [name for name in inspect.signature(Runner.__init__).parameters
            if name not in ('self', 'cfg')] + list(TOP_LEVEL)


def register_modules(cfg: Config) -> None:
    """Import the registries of the packages that a config uses."""
    for scope in {cfg.get('default_scope') or 'mmengine', 'mmengine'}:
        with contextlib.suppress(ImportError):
            import_module(f'{scope}.registry')


def check_options(cfg: Config, options: Dict[str, Any]) -> None:
    """Refuse paths of ``--cfg-options`` that lead to nothing.

    Args:
        cfg: The config before the options are merged.
        options: By dotted path, the values.
    """
    register_modules(cfg)
    for path in options:
        _check_path(cfg, path)


def _check_path(cfg: Config, path: str) -> None:
    parts = path.split('.')
    if parts[0] not in cfg and parts[0] not in top_level_names():
        raise ConfigError(f'--cfg-options {path}: the config has no {parts[0]}'
                          f'{did_you_mean(parts[0], [*cfg, *top_level_names()])}')
    place: Any = cfg
    for number, part in enumerate(parts):
        where = '.'.join(parts[:number])
        if isinstance(place, (list, tuple)):
            place = _item(place, part, path, where)
        elif not isinstance(place, dict) and not isinstance(place, Config):
            if place is None:
                return
            raise ConfigError(f'--cfg-options {path}: {where} is {place!r}, which has no {part}')
        elif part in place:
            place = place[part]
        else:
            _check_new(place, part, path, where, cfg.get('default_scope') or 'mmengine')
            return


def _item(place: Any, part: str, path: str, where: str) -> Any:
    if not part.isdigit():
        raise ConfigError(f'--cfg-options {path}: {where} is a list; name an item by its number, '
                          f'such as {where}.0')
    if int(part) >= len(place):
        raise ConfigError(f'--cfg-options {path}: {where} has {len(place)} items, numbered from 0')
    return place[int(part)]


def _check_new(place: dict, part: str, path: str, where: str, scope: str) -> None:
    """Refuse a new key, unless it is an argument of the module that it would be in."""
    if not where:
        return
    accepted = arguments_of(place['type'], scope) if 'type' in place else None
    if accepted is None:
        near = did_you_mean(part, place, NEAR)
        if near:
            raise ConfigError(f'--cfg-options {path}: {where} has no {part}{near}')
    elif part not in (*accepted, *INTERNAL, *BUILDERS.get(where, ())):
        raise ConfigError(f'--cfg-options {path}: '
                          f'{unknown_argument(place["type"], part, accepted)}')


def check_arguments(cfg: Config) -> None:
    """Refuse unknown modules and unknown arguments of known ones."""
    register_modules(cfg)
    scope = cfg.get('default_scope') or 'mmengine'
    for name in BUILT:
        if name in cfg:
            for path, module in _modules(cfg[name], name):
                _check_module(path, module, scope)
        if name.endswith('_dataloader'):
            _check_names(name, 'DataLoader', cfg.get(name) or {}, loader_arguments())


def _modules(value: Any, path: str) -> Iterator[Tuple[str, dict]]:
    """Yield every dict with a ``type`` below a value that a registry builds."""
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _modules(item, f'{path}.{number}')
    elif isinstance(value, dict):
        if value.get('type') is not None:
            yield path, value
        for key, item in value.items():
            if key not in SPECIAL and isinstance(item, (dict, list, tuple)):
                yield from _modules(item, f'{path}.{key}')


def _check_module(path: str, module: dict, scope: str) -> None:
    """Refuse a name that is nearly the name of a module or of an argument.

    A name that is like no other stops the run when the module is built. Other code may take
    an argument out of the config before, so that an unknown name alone is no mistake.
    """
    name = module['type']
    if isinstance(name, str) and find_module(name, scope) is None:
        short = name.rpartition('.')[2]
        near = did_you_mean(short, registered_names(), NEAR)
        if near and not short.islower():
            raise ConfigError(f'{path}.type: {name} is not registered{near}')
        return
    accepted = arguments_of(name, scope)
    last = path.rpartition('.')[2]
    if accepted is None or last.startswith('loss'):
        return
    _check_names(path, name, module, accepted.union(INTERNAL, BUILDERS.get(last, ())))


def _check_names(path: str, name: Union[str, Callable], module: dict, accepted: Set[str]) -> None:
    for key in module:
        if key not in accepted and did_you_mean(key, accepted, NEAR):
            raise ConfigError(f'{path}: {unknown_argument(name, key, accepted)}')


def loader_arguments() -> Set[str]:
    """The settings of a data loader: torch's arguments and those that mmengine adds."""
    return {*inspect.signature(DataLoader.__init__).parameters, *INTERNAL, 'num_batch_per_epoch'}


def all_registries() -> Iterator[Registry]:
    """mmengine's registries and the ones that other packages derive from them."""
    for root in vars(registries).values():
        if isinstance(root, Registry):
            for registry in (root, *root.children.values()):
                registry.import_from_location()
                yield registry


def registered_names() -> Set[str]:
    """All names in all registries."""
    return {name for registry in all_registries() for name in registry.module_dict}


def find_module(name: str, default_scope: str) -> Optional[Callable]:
    """The class or function that a ``type`` names; None if no registry has it."""
    scope, _, key = name.rpartition('.')
    found = [(registry.scope, registry.module_dict[key]) for registry in all_registries()
             if key in registry.module_dict]
    wanted = [module for owner, module in found if owner == scope] or [
        module for owner, module in found if owner == default_scope] or [
        module for _, module in found]
    return wanted[0] if wanted else None


def arguments_of(name: Union[str, Callable], scope: str) -> Optional[Set[str]]:
    """The names of the arguments of a module, or of its name; None if it takes any."""
    module = find_module(name, scope) if isinstance(name, str) else name
    if module is None:
        return None
    if not inspect.isclass(module):
        return _named(module)
    accepted: Set[str] = set()
    for owner in module.__mro__:
        if '__init__' not in vars(owner):
            continue
        if owner is object:
            return accepted
        parameters = inspect.signature(owner.__init__).parameters.values()
        accepted.update(item.name for item in parameters if item.kind is not item.VAR_KEYWORD)
        others = [item.name for item in parameters if item.kind is item.VAR_KEYWORD]
        if not others:
            return accepted
        if others != ['kwargs']:  # such as resize_kwargs, for another class than the parent
            return None
    return None


def _named(function: Callable) -> Optional[Set[str]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a compiled function
        return None
    if any(item.kind is item.VAR_KEYWORD for item in parameters):
        return None
    return {item.name for item in parameters}
