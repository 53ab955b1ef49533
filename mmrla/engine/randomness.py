"""Random numbers of a run: their states, and a seed for every training sample."""
import contextlib
import copy
import random
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from mmrla.datasets.errors import NamedItems


def random_state() -> Dict[str, Any]:
    """The random states of this process, as tensors and plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state = dict(
        python=random.getstate(),
        numpy=(kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached),
        torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Dict[str, Any]) -> None:
    """Restore what :func:`random_state` returned."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state['numpy']
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


@contextlib.contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed all generators inside the context from ``numbers``; restore them afterwards.

    CUDA's generator, which no data pipeline uses, is left alone.
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
    """The indices of a batch, with the numbers that seed its samples.

    Attributes:
        seeds: The seed of the run, the epoch, and the number of the batch in it.
    """

    def __init__(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        super().__init__(indices)
        self.seeds = tuple(seeds)

    def __reduce__(self):  # that of a list would call __init__ without arguments
        return Batch, (list(self), self.seeds)


def _containers(batches: Sampler) -> Dict[str, Any]:
    """Copies of the lists and dicts of a batch sampler."""
    return {name: copy.deepcopy(value) for name, value in getattr(batches, '__dict__', {}).items()
            if isinstance(value, (list, dict))}


class RepeatableBatches(Sampler):
    """A batch sampler whose batches carry their seeds, and that can start within an epoch.

    The batches before the first are drawn, but their images are not loaded. The
    seeds travel with the batches, so workers that are already running follow a
    change of ``seed`` or ``epoch``.

    Args:
        batches: The batch sampler.
        seed: The seed of the run.

    Attributes:
        epoch: The epoch that is drawn next.
        first: The batch that it starts with.
    """

    def __init__(self, batches: Sampler, seed: int) -> None:
        self.batches = batches
        self.seed = seed
        self.epoch = 0
        self.first = 0
        self._initial = _containers(batches)

    def forget(self) -> None:
        """Forget the indices that an earlier iterator left.

        mmdet's ``AspectRatioBatchSampler`` keeps incomplete batches for its next iterator.
        """
        vars(self.batches).update(copy.deepcopy(self._initial))

    def __iter__(self) -> Iterator[Batch]:
        seed, epoch, first = self.seed, self.epoch, self.first
        self.first = 0
        for number, batch in enumerate(self.batches):
            if number >= first:
                yield Batch(batch, (seed, epoch, number))

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.batches, name)


class SeededItems(NamedItems):
    """Load the samples of a batch, each from a seed of its own.

    The seed depends on the run's seed, the epoch, the batch and the sample only: not
    on the worker that loads it, nor on the number of workers. A resumed epoch draws
    the augmentations that the interrupted one would have drawn.

    Args:
        dataset: The data set.
    """

    def __call__(self, batch: Sequence[int]) -> List[Any]:
        """The samples of a batch."""
        seeds = getattr(batch, 'seeds', ())
        items = []
        for index in batch:
            with seeded(*seeds, int(index)):
                items.append(self.load(index))
        return items


def make_repeatable(loader: DataLoader, seed: int) -> RepeatableBatches:
    """Let a loader draw the same numbers again after an interruption.

    Args:
        loader: The loader, before its first iterator.
        seed: The seed of the run.

    Returns:
        RepeatableBatches: Its batch sampler.
    """
    batches = RepeatableBatches(loader.batch_sampler, seed)
    # torch forbids this assignment because an iterator might be in use
    object.__setattr__(loader, 'batch_sampler', batches)
    # torch loads a whole batch through this name, also from an instance
    loader.dataset.__getitems__ = SeededItems(loader.dataset)
    # otherwise every iterator would draw a seed from the global generator
    loader.generator = torch.Generator().manual_seed(seed)
    return batches
