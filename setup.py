"""Packaging of mmrla; `tools/setup_env.py` sets up a whole environment."""
import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

REPO = Path(__file__).resolve().parent
# The files that mim looks for in mmrla/.mim, beside the list of models.
MIM_FILES = ('tools', 'model-index.yml')
# The configs, seen from mmrla/.mim.
CONFIGS = '../zoo/.mim/configs/configs'
# Scripts that need the repository.
NOT_IN_WHEEL = ('__pycache__', 'setup_env.py', 'dev')


def version() -> str:
    scope = {}
    exec((REPO / 'mmrla/version.py').read_text(), scope)
    return scope['__version__']


def requirements(name: str) -> list:
    lines = (REPO / f'requirements/{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


class BuildWithMim(build_py):
    """Add configs and tools to the package.

    mim finds the tools and the list of models in ``mmrla/.mim``, and mmengine finds configs by
    package name in ``mmrla/zoo/.mim``. ``mim train`` refuses the name of a config that is twice
    in the package, so the list in ``mmrla/.mim`` names those in ``mmrla/zoo/.mim``. The files are
    copied into a wheel. In an editable install ``mmrla/.mim`` gets links, so that the tools are
    never out of date; ``mmrla/zoo/.mim`` has links already.
    """

    def run(self) -> None:
        super().run()
        package = (REPO if self.editable_mode else Path(self.build_lib)) / 'mmrla'
        shutil.rmtree(package / '.mim', ignore_errors=True)
        (package / '.mim/configs').mkdir(parents=True)
        for name in MIM_FILES:
            self.place(REPO / name, package / '.mim' / name)
        models = (REPO / 'configs/metafile.yml').read_text()
        (package / '.mim/configs/metafile.yml').write_text(
            models.replace('\n  Config: configs/', f'\n  Config: {CONFIGS}/'))
        if not self.editable_mode:
            shutil.rmtree(package / 'zoo/.mim', ignore_errors=True)
            self.place(REPO / 'mmrla/zoo/.mim', package / 'zoo/.mim')

    def place(self, source: Path, target: Path) -> None:
        if self.editable_mode:
            target.symlink_to(os.path.relpath(source, target.parent))
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*NOT_IN_WHEEL))
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
    python_requires='>=3.11',
    packages=find_packages(include=['mmrla', 'mmrla.*']),
    py_modules=['mmrla_cli'],
    package_data={'mmrla.evaluation.report': ['page.*']},
    entry_points=dict(console_scripts=['mmrla = mmrla_cli:main']),
    cmdclass=dict(build_py=BuildWithMim),
    install_requires=requirements('runtime'),
    extras_require=dict(
        mim=requirements('mminstall'),
        openmmlab=requirements('openmmlab'),
        onedl=requirements('onedl'),
        timm=requirements('timm'),
        development=requirements('development'),
        onnx=requirements('onnx'),
        report=requirements('report'),
        all=[line for name in ('report', 'onnx', 'development') for line in requirements(name)]),
    classifiers=[
        'Development Status :: 4 - Beta',
        'License :: OSI Approved :: Apache Software License',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
    zip_safe=False)
