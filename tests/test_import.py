"""``import mmrla`` registers modules and changes no attribute of another package."""
import json
import subprocess
import sys

import pytest

from mmrla.weights.sources import NEW_LOADERS

PACKAGES = ('torch', 'torchvision', 'mmengine', 'mmcv', 'mmdet', 'mmpretrain')

# Run in a fresh process. All modules are imported first, so that an import by mmrla adds
# none; then every attribute of every module and class is compared by identity.
COMPARE = """
import importlib, json, sys, types, warnings
warnings.simplefilter('ignore')
PACKAGES = PACKAGES_

import torch
# What mmrla.stack adds before torchvision can be imported with a CPU-only torch.
operators = torch.library.Library('torchvision', 'FRAGMENT')
if torch.version.cuda is None:
    for name in ('nms', 'qnms'):
        operators.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
for name in IMPORTS_:
    importlib.import_module(name)


def owners():
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.split('.')[0] in PACKAGES:
            yield name, module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield name + '.' + key, value


def attributes(owner):
    # descriptors of a class are compared as they are stored, not as getattr returns them
    return dict(vars(owner))


before = dict()
for name, owner in owners():
    before[name] = (owner, attributes(owner))
containers = dict()
for name, (owner, values) in before.items():
    for key, value in values.items():
        if isinstance(value, (dict, list, set)) and not key.startswith('__'):
            plain = next(kind for kind in (dict, list, set) if isinstance(value, kind))
            containers[name + '.' + key] = (value, plain(value))
import mmrla
changed, removed = [], []
for name, (owner, values) in before.items():
    now = attributes(owner)
    for key, value in values.items():
        if key not in now:
            removed.append(name + '.' + key)
        elif now[key] is not value:
            changed.append(name + '.' + key)
shrunk = []
for name, (value, copy) in containers.items():
    if isinstance(copy, dict):
        lost = [key for key in copy if key not in value or value[key] is not copy[key]]
    elif isinstance(copy, list):
        lost = [] if value[:len(copy)] == copy else ['order']
    else:
        lost = list(copy - value)
    if lost:
        shrunk.append(name + ': ' + str(lost[:3]))
print(json.dumps(dict(changed=changed, removed=removed, shrunk=shrunk, owners=len(before))))
"""

IMPORTS = ('torch', 'torchvision', 'torchvision.models', 'torch.distributed', 'torch.onnx',
           'mmengine', 'mmengine.runner', 'mmengine.hooks', 'mmengine.model', 'mmengine.infer',
           'mmcv', 'mmcv.cnn', 'mmcv.ops', 'mmcv.transforms', 'mmdet', 'mmdet.apis', 'mmdet.models',
           'mmdet.datasets', 'mmdet.engine', 'mmdet.evaluation', 'mmdet.visualization',
           'mmpretrain', 'mmpretrain.apis', 'mmpretrain.models', 'mmpretrain.datasets')

# Additive registrations that rebind the attribute which holds the table. The content is
# checked below: every earlier entry is still there.
ADDITIVE = {
    'mmengine.runner.checkpoint.CheckpointLoader._schemes',  # new names
    'torch._weights_only_unpickler._marked_safe_globals_set',  # add_safe_globals
}


def comparison(imports):
    return COMPARE.replace('PACKAGES_', repr(PACKAGES)).replace('IMPORTS_', repr(imports))


@pytest.fixture(scope='module')
def difference():
    code = comparison(IMPORTS)
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_no_attribute_is_rebound_or_removed(difference):
    assert difference['owners'] > 5000, 'the snapshot is too small to mean anything'
    assert set(difference['changed']) - ADDITIVE == set()
    assert difference['removed'] == []


def test_registries_and_tables_only_grow(difference):
    assert difference['shrunk'] == []


def test_the_names_of_checkpoints_that_mmengine_knows_keep_their_loaders():
    code = ('from mmengine.runner import CheckpointLoader as Loader; '
            'before = dict(Loader._schemes); import mmrla; now = Loader._schemes; '
            'print(all(now[key] is before[key] for key in before), sorted({*now} - {*before}))')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    expected = f'True {sorted(NEW_LOADERS)}'
    assert result.stdout.strip().splitlines()[-1] == expected, result.stderr


def test_a_rebound_attribute_would_be_found():
    code = comparison(('mmengine', 'mmengine.runner')).replace(
        'import mmrla\n', 'import mmengine.runner as r; r.Runner.train = lambda self: None\n'
        'r.save_checkpoint = None; r.CheckpointLoader._schemes.pop("mmcls://")\n')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    found = json.loads(result.stdout.splitlines()[-1])
    assert 'mmengine.runner.runner.Runner.train' in found['changed']
    assert 'mmengine.runner.save_checkpoint' in found['changed']
    assert any('mmcls://' in table for table in found['shrunk'])


def test_importing_mmrla_imports_no_package_that_it_may_not_need():
    code = ('import sys, mmrla; names = ("mmdet", "mmpretrain", "torchvision", "gdown"); '
            'print([name for name in names if name in sys.modules])')
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.stdout.strip() == '[]', result.stderr
