"""What tests share."""
import importlib.util
from pathlib import Path
from types import ModuleType

REPO = Path(__file__).resolve().parents[2]
CONFIGS = REPO / 'configs'


def load_tool(name: str) -> ModuleType:
    """A script below tools/ as a module, such as ``dev/chaos``."""
    spec = importlib.util.spec_from_file_location(Path(name).name, REPO / f'tools/{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
