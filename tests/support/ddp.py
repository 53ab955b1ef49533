"""The workers of tests with two processes; spawned processes import them by name."""
import faulthandler
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mmrla.engine.distributed import destroy_process_group
from mmrla.models import RLAResNet

WORLD = 2


def network():
    torch.manual_seed(0)
    net = RLAResNet(18, base_channels=8, frozen_stages=1).double()
    with torch.no_grad():  # zero-initialised branches would hide their gradients
        for name, p in net.named_parameters():
            if p.dim() == 1 and name.endswith('weight'):
                p.uniform_(0.5, 1.5)
    return net.train()


def images():
    return torch.randn(4, 3, 65, 72, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(1))


def mean_loss(outs):
    return sum(out.square().mean() for out in outs)


def save_gradients(rank, folder):
    net = DistributedDataParallel(network())
    for _ in range(2):  # the second step is where DDP reports unused parameters
        net.zero_grad()
        mean_loss(net(images().chunk(WORLD)[rank])).backward()
    torch.save([p.grad for p in net.module.parameters()], f'{folder}/{rank}.pth')


def work(rank, address, folder):
    dist.init_process_group('gloo', init_method=address, rank=rank, world_size=WORLD)
    save_gradients(rank, folder)
    destroy_process_group()


def train_small_network():
    net = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))), bucket_cap_mb=0.01)
    net.runner = dict(model=net)  # a cycle, as in a run
    for _ in range(2):
        net(torch.ones(4, 64)).sum().backward()


def train_and_destroy(rank, folder, rounds):
    """Destroy a process group again and again while its threads wait for the GIL."""
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    sys.setswitchinterval(1000)  # the main thread releases the GIL in C++ only
    for i in range(rounds):
        dist.init_process_group('gloo', init_method=f'file://{folder}/store{i}', rank=rank,
                                world_size=WORLD)
        train_small_network()
        destroy_process_group()
