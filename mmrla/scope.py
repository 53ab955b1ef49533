"""The default scope of a run."""
from mmengine.registry import DefaultScope

# The scope of the parts of a config that is inherited from mmrla by package name.
SCOPE = 'mmrla'


def scope_of_run() -> str:
    """Return the newest default scope other than ``mmrla``, or the scope of the roots."""
    scopes = [instance.scope_name for instance in DefaultScope._instance_dict.values()]
    return next((scope for scope in reversed(scopes) if scope != SCOPE), 'mmengine')
