"""Random states, and the seeds of samples."""
import random

import numpy as np
import torch

from mmrla.engine.randomness import (
    Batch,
    RepeatableBatches,
    SeededItems,
    random_state,
    restore_random_state,
    seeded,
)


def test_random_states_come_back():
    state = random_state()
    draws = [(random.random(), np.random.normal(), torch.randn(3)) for _ in range(2)]
    restore_random_state(state)
    for one, two, three in draws:
        assert (random.random(), np.random.normal()) == (one, two)
        assert torch.equal(torch.randn(3), three)


def test_a_sample_is_drawn_from_its_own_seed_and_nothing_else_is():

    class Draws:

        def __getitem__(self, index):
            return index, random.random(), np.random.rand(), float(torch.rand(()))

    items = SeededItems(Draws())
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = items(Batch([4, 5], (3, 1, 2)))
    assert torch.equal(torch.rand(2), expected), 'loading changed the run\'s own numbers'
    assert items(Batch([5], (3, 1, 2))) == first[1:], 'a sample depends on those before it'
    assert items(Batch([5], (3, 2, 2))) != first[1:], 'every epoch draws the same'
    with seeded(1):
        one = random.random()
    with seeded(1):
        assert random.random() == one


def test_an_epoch_that_begins_in_its_middle_has_the_rest_of_its_batches():
    batches = RepeatableBatches([[0, 1], [2, 3], [4]], seed=7)
    whole = list(batches)
    batches.first = 2
    assert list(batches) == whole[2:] and len(batches) == 3
    assert [batch.seeds for batch in list(batches)] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]


def test_a_batch_sampler_forgets_what_an_earlier_iterator_left():
    """An incomplete batch of the iterator before a resume would shift all later ones."""
    class Collecting(list):
        pass

    batches = Collecting()
    batches.waiting = [[], []]
    repeatable = RepeatableBatches(batches, seed=0)
    batches.waiting[1].append(5)
    repeatable.forget()
    assert batches.waiting == [[], []]
