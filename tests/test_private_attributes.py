"""The private attributes of other packages that mmrla uses.

An upgrade of torch or of an OpenMMLab package that removes one of them fails here first.
``PRIVATE`` is the list. Another use of a private attribute in mmrla needs another line.
"""
import ast
import inspect
import textwrap
from collections import defaultdict
from multiprocessing.queues import Queue

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseModule
from mmengine.model.weight_init import BaseInit
from mmengine.optim import OptimWrapper
from mmengine.registry import DefaultScope
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, checkpoint, loops
from torch.distributed import Reducer
from torch.nn.modules import batchnorm, module
from torch.nn.parallel import DistributedDataParallel

from support import REPO

SUM = (torch.ones(1, requires_grad=True) + 1).grad_fn  # a node of autograd's graph
# The owner of each attribute: a module, an instance, or a class that defines the attribute
# or sets it on ``self``.
PRIVATE = {
    '_BatchNorm': batchnorm,
    '_C': torch,
    '_InfiniteDataloaderIterator': loops,
    '_accumulative_counts': OptimWrapper,
    '_backward_hooks': torch.nn.Module,
    '_backward_pre_hooks': torch.nn.Module,
    '_build_params_for_reducer': DistributedDataParallel,
    '_current_graph_task_id': torch._C,
    '_decide_current_val_interval': EpochBasedTrainLoop,
    '_forward_hooks': torch.nn.Module,
    '_forward_pre_hooks': torch.nn.Module,
    '_get_init_info': BaseInit,
    '_get_mmengine_home': checkpoint,
    '_global_backward_hooks': module,
    '_global_backward_pre_hooks': module,
    '_global_forward_hooks': module,
    '_global_forward_pre_hooks': module,
    '_has_loaded': Runner,
    '_indices_of_rank': InfiniteSampler,
    '_init_model_weights': Runner,
    '_inner_count': OptimWrapper,
    '_input_metadata': SUM,
    '_instance_dict': DefaultScope,
    '_iter': IterBasedTrainLoop,
    '_iterator': loops._InfiniteDataloaderIterator,
    '_load_from': Runner,
    '_max_counts': OptimWrapper,
    '_max_epochs': EpochBasedTrainLoop,
    '_max_iters': IterBasedTrainLoop,
    '_metadata': torch.nn.Module().state_dict(),
    '_on_queue_feeder_error': Queue,
    '_params_init_info': BaseModule,
    '_publish_model': CheckpointHook,
    '_push_all_rebuilt_params': Reducer,
    '_randomness_cfg': Runner,
    '_resume': Runner,
    '_save_best_checkpoint': CheckpointHook,
    '_save_checkpoint': CheckpointHook,
    '_save_checkpoint_with_step': CheckpointHook,
    '_saved_alpha': SUM,
    '_test_dataloader': Runner,
    '_train_dataloader': Runner,
    '_val_dataloader': Runner,
}
DOCUMENTED = {'_asdict', '_exit', '_fields', '_make', '_replace'}  # of the standard library
LOOKUPS = {'getattr', 'setattr', 'hasattr', 'delattr'}


def is_private(name):
    return name.startswith('_') and not name.startswith('__') and name not in DOCUMENTED


def private_names(tree):
    """The private names that a module of mmrla defines, and those that it uses.

    A name that mmrla defines belongs to mmrla, except after ``super()`` and in ``PRIVATE``:
    a subclass may assign or override an attribute of its base.
    """
    defined, used, inherited = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
            used.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls')
            if is_own and isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
            is_super = (isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
                        and node.value.func.id == 'super')
            (inherited if is_super else used).add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (
                node.func.id in LOOKUPS and isinstance(node.args[1], ast.Constant)):
            used.add(node.args[1].value)
    return defined, used, inherited


def foreign_private_names():
    """The private names that mmrla uses and does not define, with the files."""
    defined, files = set(), defaultdict(set)
    inherited = set()
    for path in sorted((REPO / 'mmrla').rglob('*.py')):
        own, used, after_super = private_names(ast.parse(path.read_text()))
        defined |= own
        inherited |= after_super
        for name in filter(is_private, used | after_super):
            files[name].add(str(path.relative_to(REPO)))
    return {name: sorted(paths) for name, paths in files.items()
            if name in inherited or name in PRIVATE or name not in defined}


def sets_on_self(owner, name):
    """Whether a method of a class, or of one of its bases, sets ``self.name``."""
    for base in owner.__mro__[:-1]:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if (isinstance(node, ast.Attribute) and node.attr == name
                    and isinstance(node.ctx, ast.Store)):
                return True
    return False


def test_every_private_attribute_is_listed():
    missing = {name: paths for name, paths in foreign_private_names().items()
               if name not in PRIVATE}
    assert missing == {}, 'add these to PRIVATE, or use a public function instead'


def test_the_list_has_no_unused_entries():
    assert set(PRIVATE) - set(foreign_private_names()) == set(), 'remove these from PRIVATE'


@pytest.mark.parametrize('name', PRIVATE)
def test_the_installed_versions_have_the_private_attribute(name):
    owner = PRIVATE[name]
    exists = hasattr(owner, name) or isinstance(owner, type) and (
        any(name in vars(base).get('__annotations__', ()) for base in owner.__mro__)
        or sets_on_self(owner, name))
    assert exists, f'{owner} has no attribute {name}'
