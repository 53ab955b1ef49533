"""The backbone on several processes, without a GPU."""
import torch
import torch.multiprocessing as mp

from support.ddp import WORLD, images, mean_loss, network, work


def test_two_processes_give_the_gradients_of_one(tmp_path):
    mp.spawn(work, (f'file://{tmp_path}/store', str(tmp_path)), WORLD)
    single = network()
    mean_loss(single(images())).backward()
    for rank in range(WORLD):
        gradients = torch.load(tmp_path / f'{rank}.pth')
        for (name, p), gradient in zip(single.named_parameters(), gradients, strict=True):
            if p.grad is None:
                assert gradient is None, name
                continue
            error = (gradient - p.grad).abs().max()
            assert error <= 1e-5 * p.grad.abs().max(), f'{name}: off by {error}'
