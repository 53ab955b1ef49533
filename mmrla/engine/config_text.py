"""Config text read as data.

mmengine writes the config of a run into its checkpoints and its log folder as Python
text, and reads it back by executing it. A checkpoint may come from anyone.
:func:`parse_config` accepts the literals that mmengine writes and nothing else, and
:func:`check_names` refuses names that would make a registry or an operator call
something other than a registered module.
"""
import ast
import math
import re
from importlib.util import find_spec
from typing import Any, Dict, Iterator, Optional, Tuple

from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.registry import root as registries

# mmengine prints these floats without quotes.
FLOATS = dict(inf=math.inf, nan=math.nan)
# Registered modules that evaluate one of their arguments.
EVALUATING = ('CameraMotionCompensation', 'RFSearchHook')
# Packages that a config may import before it is used.
PACKAGES = ('mmrla', 'mmdet', 'mmpretrain', 'mmcv', 'mmengine')


class ConfigTextError(ValueError):
    """Config text that is not plain data; the message names the source and the line."""


def parse_config(text: str, source: str) -> Config:
    """Read config text that mmengine wrote, without executing it.

    Args:
        text: Assignments of literals; ``dict(...)`` is the only call.
        source: Where the text is from, for the message.
    """
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigTextError(f'the config in {source} is not Python text '
                              f'({str(error).splitlines()[0]})') from None
    values = {}
    for statement in statements:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise _refused(statement, source)
        values[statement.targets[0].id] = _value(statement.value, source)
    return Config(values)


def _refused(node: ast.AST, source: str) -> ConfigTextError:
    code = ast.unparse(node).splitlines()[0]
    return ConfigTextError(f'the config in {source} is refused: line {node.lineno} holds code, '
                           f'not a value ({code[:60]})')


def _value(node: ast.AST, source: str) -> Any:
    """The value of a literal."""
    if isinstance(node, ast.Call):
        return _dict_call(node, source)
    if isinstance(node, ast.Dict):
        return _dict(node, source)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(item, source) for item in node.elts)
    if isinstance(node, ast.Name) and node.id in FLOATS:
        return FLOATS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Name):
        return -_value(node.operand, source)  # -inf
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise _refused(node, source) from None


def _dict(node: ast.Dict, source: str) -> Dict[Any, Any]:
    if None in node.keys:  # **other
        raise _refused(node, source)
    return {_value(key, source): _value(value, source)
            for key, value in zip(node.keys, node.values, strict=True)}


def _dict_call(node: ast.Call, source: str) -> Dict[Any, Any]:
    """``dict(a=1)``, or ``dict({'a.b': 1})`` as mmengine prints other keys."""
    is_dict = isinstance(node.func, ast.Name) and node.func.id == 'dict'
    positional = all(isinstance(item, ast.Dict) for item in node.args) and len(node.args) < 2
    if not is_dict or not positional or any(item.arg is None for item in node.keywords):
        raise _refused(node, source)
    values = _dict(node.args[0], source) if node.args else {}
    values.update((item.arg, _value(item.value, source)) for item in node.keywords)
    return values


def config_of_checkpoint(checkpoint: Dict[str, Any], source: str) -> Optional[Config]:
    """The config that a checkpoint carries; None if it carries none."""
    texts = ((checkpoint.get('meta') or {}).get('cfg'),
             ((checkpoint.get('message_hub') or {}).get('runtime_info') or {}).get('cfg'))
    text = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return None if text is None else parse_config(text, source)


def check_names(cfg: Config, source: str) -> None:
    """Refuse a config whose values would run code when its model is built or used.

    A registry imports a name that it does not hold, and mmcv evaluates the name of an NMS.
    Every ``type`` must be the name of a registered module, and no other string may contain
    a call.

    Args:
        cfg: The config, as :func:`parse_config` returns it.
        source: Where the config is from, for the message.
    """
    for module in cfg.get('custom_imports', {}).get('imports', []):
        if str(module).split('.')[0] not in PACKAGES:
            raise ConfigTextError(
                f'the config in {source} imports {module}, which is not part of '
                f'{", ".join(PACKAGES)}. If you trust it, pass the config file with --config')
    for place, value in _strings(cfg.to_dict()):
        if place[-1] == 'type' and not _is_module_name(value):
            raise ConfigTextError(f'the config in {source} is refused: {".".join(place)} = '
                                  f'{value!r} is not a registered module')
        if place[-1] != 'type' and ('(' in value or '__' in value):
            raise ConfigTextError(f'the config in {source} is refused: {".".join(place)} = '
                                  f'{value!r} holds code')


def _strings(value: Any, place: Tuple[str, ...] = ()) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """All strings below a value, with the path to them."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, (*place, str(key)))
    elif isinstance(value, (list, tuple, set)):
        for number, item in enumerate(value):
            yield from _strings(item, (*place, str(number)))


def _is_module_name(name: str) -> bool:
    """Whether a ``type`` can only mean a registered module or an option of one.

    ``mmdet.FasterRCNN`` is registered, and so is the last part of a full path such as
    ``mmdet.models.detectors.FasterRCNN``, which mmengine's lazy configs write. Options such
    as ``nms`` or ``ECA`` are looked up in tables. A registry imports any other name.
    """
    if not re.fullmatch(r'\w+(\.\w+)*', name):
        return False
    scope, _, key = name.rpartition('.')
    if key in EVALUATING or scope and scope.split('.')[0] not in PACKAGES:
        return False
    if any(key in registry.module_dict for registry in _registries()):
        return True
    return not scope and find_spec(name) is None


def _registries() -> Iterator[Registry]:
    """mmengine's registries and the ones that other packages derive from them."""
    for root in vars(registries).values():
        if isinstance(root, Registry):
            for registry in (root, *root.children.values()):
                registry.import_from_location()
                yield registry
