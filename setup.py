"""Packaging of mmrla; `tools/setup_env.py` sets up a whole environment."""
import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

REPO = Path(__file__).resolve().parent
# What mim looks for in mmrla/.mim
MIM_FILES = ('configs', 'tools', 'model-index.yml')


def version() -> str:
    scope = {}
    exec((REPO / 'mmrla/version.py').read_text(), scope)
    return scope['__version__']


def requirements(name: str) -> list:
    lines = (REPO / f'requirements/{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


class BuildWithMim(build_py):
    """Carry configs and tools in ``mmrla/.mim``.

    They are copied into a wheel, and linked in an editable install so that
    they are never stale.
    """

    def run(self) -> None:
        super().run()
        target = (REPO if self.editable_mode else Path(self.build_lib)) / 'mmrla/.mim'
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in MIM_FILES:
            self.place(REPO / name, target / name)

    def place(self, source: Path, target: Path) -> None:
        if self.editable_mode:
            target.symlink_to(os.path.relpath(source, target.parent))
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy2(source, target)


setup(
    name='mmrla',
    version=version(),
    description='Recurrent layer aggregation (RLA) for MMDetection and MMPretrain',
    long_description=(REPO / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    keywords='computer vision, object detection, layer aggregation, backbone',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmrla', 'mmrla.*']),
    cmdclass=dict(build_py=BuildWithMim),
    install_requires=requirements('runtime'),
    extras_require=dict(
        mim=requirements('mminstall'),
        detection=requirements('detection'),
        pretraining=requirements('pretraining'),
        timm=requirements('timm'),
        development=requirements('development'),
        all=[line for name in ('detection', 'pretraining', 'development')
             for line in requirements(name)]),
    classifiers=[
        'Development Status :: 4 - Beta',
        'License :: OSI Approved :: Apache Software License',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.11',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
    zip_safe=False)
