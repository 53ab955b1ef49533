"""mmengine's other ways to train: the strategies of FlexibleRunner, and ``compile`` in a config."""
import os
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.runner._flexible_runner import FlexibleRunner
from torch._dynamo.utils import counters

from mmrla.datasets import make_class_folders
from mmrla.engine import RLARunner
from mmrla.engine.distributed import init_gloo
from support import CONFIGS, load_tool

chaos = load_tool('dev/chaos')
BACKBONES = dict(ours=dict(), plain=dict(rla=None))
# mmengine's state_dict_cfg='full' asks FSDP to move the state to the CPU. Where it is on the CPU
# already, FSDP takes no copy and frees the memory of what it returns (torch 2.13).
STRATEGIES = dict(
    DDPStrategy=dict(model_wrapper=dict(
        type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)),
    FSDPStrategy=dict(
        state_dict_cfg=dict(
            state_dict_type='FULL_STATE_DICT',
            state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
            optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True)),
        model_wrapper=dict(type='MMFullyShardedDataParallel', device_id=torch.device('cpu'),
                           use_orig_params=True)))

pytestmark = pytest.mark.usefixtures('fast_children')


def config(data, work_dir, backbone, **options):
    """A config of mmengine's own runners: without the hooks of RLARunner."""
    hook = dict(_delete_=True, type='CheckpointHook', interval=1)
    cfg = chaos.small_config(data, work_dir, default_hooks__checkpoint=hook,
                             train_cfg__max_epochs=1, randomness=dict(seed=0), **options)
    cfg.default_hooks.pop('finite_loss')
    cfg.model.backbone.update(BACKBONES[backbone])
    return cfg


def run(work_dir, train, processes=2):
    """Train in processes; their exit codes and output."""
    log, port = Path(f'{work_dir}.log'), chaos.free_port()

    def work(rank):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_RANK=str(rank),
                          MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        if processes > 1:
            init_gloo('pytorch')  # mmengine's own set-up needs a GPU
        train()

    children = [chaos.fork(lambda rank=rank: work(rank), log) for rank in range(processes)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return codes, log.read_text()


def saved(work_dir):
    """The weights and the momentum after the epoch, by the names of the plain model."""
    checkpoint = torch.load(work_dir / 'epoch_1.pth', weights_only=True)
    # DDPStrategy saves the names of the wrapped model, unlike mmengine's Runner.
    weights = {name.removeprefix('module.'): value
               for name, value in checkpoint['state_dict'].items()}
    return weights, checkpoint['optimizer']['state']


@pytest.mark.parametrize('backbone', BACKBONES)
def test_the_strategies_of_flexible_runner_train(data, tmp_path, backbone):
    """FSDP, which shards the parameters, and DDP train the same weights."""
    results = []
    for strategy, arguments in STRATEGIES.items():
        cfg = config(data, tmp_path / strategy, backbone, launcher='pytorch')
        cfg.strategy = dict(type=strategy, **arguments)
        codes, output = run(tmp_path / strategy,
                            lambda cfg=cfg: FlexibleRunner.from_cfg(cfg).train())
        assert codes == [0, 0], output[-3000:]
        results.append(saved(tmp_path / strategy))
    (first, state), (second, sharded_state) = results
    assert any('rla' in name for name in first) == (backbone == 'ours')
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)
    assert len(state) == len(sharded_state) > 50, 'the momentum of a parameter is missing'


@pytest.fixture(scope='module')
def class_folders(tmp_path_factory):
    """Two batches of three images for a classifier."""
    torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))  # its imports, once
    return make_class_folders(tmp_path_factory.mktemp('data') / 'classes', train=1, val=1)


def classifier(data, work_dir, **options):
    """A config of the smallest network with a hidden path that its blocks read and update."""
    cfg = Config.fromfile(CONFIGS / 'shapes/classifier_rla_r18.py')
    cfg.merge_from_dict(dict(
        model=dict(backbone=dict(base_channels=4, num_stages=1, strides=(1, ), dilations=(1, ),
                                 out_indices=(0, )), head=dict(in_channels=4 + 16)),
        train_dataloader=dict(batch_size=3, num_workers=0, persistent_workers=False,
                              dataset=dict(data_root=str(data / 'train'))),
        # Adam would divide a small gradient by its own size.
        optim_wrapper=dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1, momentum=0.9)),
        train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=1),
        default_hooks=dict(checkpoint=dict(_delete_=True, type='CheckpointHook', interval=1)),
        work_dir=str(work_dir), log_level='WARNING', **options))
    for part in ('val', 'test'):
        cfg.update({f'{part}_{name}': None for name in ('dataloader', 'cfg', 'evaluator')})
    return cfg


@pytest.mark.parametrize('runner', [Runner, RLARunner])
def test_a_config_may_compile_the_training_step(class_folders, tmp_path, runner):
    """With the backend that traces and generates no code, which would take a minute."""

    def train(cfg, is_compiled):
        runner.from_cfg(cfg).train()
        assert bool(counters['stats']['unique_graphs']) == is_compiled

    results = []
    for name, options in dict(plain={}, compiled=dict(compile=dict(backend='eager'))).items():
        cfg = classifier(class_folders, tmp_path / name, **options)
        counters.clear()  # the child counts from here
        codes, output = run(tmp_path / name, lambda cfg=cfg: train(cfg, 'compile' in cfg), 1)
        assert codes == [0], output[-3000:]
        results.append(saved(tmp_path / name)[0])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)
