"""Registries of the scope ``mmrla``.

mmengine marks the parts of a config that is inherited by package name
(:mod:`mmrla.zoo`) with the scope ``mmrla``, and imports this module. mmrla's own modules
are in mmengine's root registries, and its configs use modules of mmdet or mmpretrain
as well. Within this scope a name therefore means what it means in the scope of the run.
"""
from typing import Optional, Type

from mmengine import registry as mmengine_registry
from mmengine.registry import Registry

from mmrla.scope import SCOPE, scope_of_run


class RunScopeRegistry(Registry):
    """A registry without modules of its own, which finds those of the run's scope."""

    def get(self, key: str) -> Optional[Type]:
        """Return the class or function with this name in the scope of the run."""
        with self.parent.switch_scope_and_registry(scope_of_run()) as registry:
            return registry.get(key)


ROOTS = [root for root in vars(mmengine_registry).values() if isinstance(root, Registry)]
REGISTRIES = [RunScopeRegistry(root.name, parent=root, scope=SCOPE) for root in ROOTS]
