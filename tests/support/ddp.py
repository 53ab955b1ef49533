"""The worker of a test with two processes; spawned processes import it by name."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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


def work(rank, address, folder):
    dist.init_process_group('gloo', init_method=address, rank=rank, world_size=WORLD)
    net = DistributedDataParallel(network())
    for _ in range(2):  # the second step is where DDP reports unused parameters
        net.zero_grad()
        mean_loss(net(images().chunk(WORLD)[rank])).backward()
    torch.save([p.grad for p in net.module.parameters()], f'{folder}/{rank}.pth')
    dist.destroy_process_group()
