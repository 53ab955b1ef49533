"""The two distributions of the packages that mmrla extends, and their requirements."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
REQUIREMENTS = REPO / 'requirements'


@dataclass(frozen=True)
class Stack:
    """One distribution of mmengine, mmcv, mmdet and mmpretrain.

    Attributes:
        name: The value of --stack, and the name of a file in ``requirements/``.
        mmcv: The name of the distribution of mmcv.
        mmcv_file: The requirement file that names mmcv. pip cannot build mmcv together with
            the others, because its build needs torch.
        constraints: The files that pin versions, for pip.
        folder: The environment in the repository.
    """
    name: str
    mmcv: str
    mmcv_file: str
    constraints: tuple
    folder: str

    def requirement_files(self, development: bool = True) -> list:
        """Return the requirement files that the environment must satisfy."""
        names = ['runtime', self.mmcv_file, self.name, 'report']
        names += ['onnx', 'development'] if development else []
        return [REQUIREMENTS / f'{name}.txt' for name in names]

    def constraint_files(self) -> list:
        """Return the files that pin versions."""
        return [REQUIREMENTS / f'{name}.txt' for name in self.constraints]

    def pins(self) -> dict:
        """Return the pinned versions by distribution name."""
        text = '\n'.join(path.read_text() for path in self.constraint_files())
        return dict(re.findall(r'^([\w.-]+)==(\S+)$', text, re.M))


STACKS = {stack.name: stack for stack in (
    Stack('openmmlab', 'mmcv', 'mminstall', ('pins',), '.venv'),
    Stack('onedl', 'onedl-mmcv', 'mminstall_onedl', ('pins', 'pins_onedl'), '.venv-onedl'))}
