"""Random numbers that a resumed run draws again: their states, and a seed for every sample."""
import contextlib
import random
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from mmrla.datasets.errors import NamedItems


def random_state() -> Dict[str, Any]:
    """The states of this process's random numbers, as tensors and plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state = dict(
        python=random.getstate(),
        numpy=(kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached),
        torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Dict[str, Any]) -> None:
    """Put back what :func:`random_state` found."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state['numpy']
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@contextlib.contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw from a seed that the numbers determine; outside, nothing has been drawn.

    CUDA's random numbers, which no data pipeline draws, are left alone.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seeds = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[1])
    torch.default_generator.manual_seed(seeds[2])
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


class Batch(List[int]):
    """The indices of a batch, which know when they were drawn.

    Attributes:
        drawn_at: Epoch, and number of the batch in it.
    """

    def __init__(self, indices: Sequence[int], drawn_at: Sequence[int]) -> None:
        super().__init__(indices)
        self.drawn_at = tuple(drawn_at)

    def __reduce__(self):  # a list's own would call __init__ with nothing
        return Batch, (list(self), self.drawn_at)


class RepeatableBatches(Sampler):
    """A batch sampler that can begin an epoch in its middle.

    The batches before are drawn, but their images are never loaded.

    Args:
        batches: The batch sampler.

    Attributes:
        epoch: The epoch that is drawn next.
        first: The batch that it begins with.
    """

    def __init__(self, batches: Sampler) -> None:
        self.batches = batches
        self.epoch = 0
        self.first = 0

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self.epoch, self.first
        self.first = 0
        for number, batch in enumerate(self.batches):
            if number >= first:
                yield Batch(batch, (epoch, number))

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # being unpickled
            raise AttributeError(name)
        return getattr(self.batches, name)


class SeededItems(NamedItems):
    """Load the samples of a batch, each from a seed of its own.

    The seed is a function of the run's seed, the epoch, the batch and the
    sample: which worker loads it, how many there are and what they loaded
    before does not matter. A resumed epoch draws the augmentations that the
    interrupted one would have drawn.

    Args:
        dataset: The data set.
        seed: The run's seed.
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        super().__init__(dataset)
        self.seed = seed

    def __call__(self, batch: Sequence[int]) -> List[Any]:
        """The samples of a batch."""
        drawn_at = getattr(batch, 'drawn_at', ())
        items = []
        for index in batch:
            with seeded(self.seed, *drawn_at, int(index)):
                items.append(self.load(index))
        return items


def make_repeatable(loader: DataLoader, seed: int) -> RepeatableBatches:
    """Let a loader draw the same numbers again after an interruption.

    Args:
        loader: The loader; none of its iterators may be in use.
        seed: The run's seed.

    Returns:
        RepeatableBatches: To say where an epoch begins.
    """
    batches = loader.batch_sampler
    if not isinstance(batches, RepeatableBatches):
        batches = RepeatableBatches(batches)
        # torch refuses this assignment lest it be done while iterating
        object.__setattr__(loader, 'batch_sampler', batches)
    # torch asks a data set for a whole batch by this name, of an instance too
    loader.dataset.__getitems__ = SeededItems(loader.dataset, seed)
    # else every iterator would draw a seed from the run's own numbers
    loader.generator = torch.Generator().manual_seed(seed)
    return batches
