"""Which images a step sees: uniform, keyed, and measured ones apart from trained ones."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

from dspreg.data.sampling import MEASURE_BATCH, draw_measure_batches, draw_training_batch


def test_batches_stay_what_they_are():
    """Literally: other numbers are other trainings under the same id."""
    assert draw_training_batch(100, 8, "digits", ("print",), 0, 0, 7, "sign") == [64, 69, 34, 66, 3, 16, 25, 74]
    assert draw_measure_batches(5, 1, "digits", ("print",), 0, 0, 7, "sign") == [[2, 3, 4, 1, 0]]


def test_training_draws_uniformly_with_replacement():
    drawn = Counter(i for t in range(300) for i in draw_training_batch(20, 32, "k", t))
    expected = 300 * 32 / 20
    assert set(drawn) == set(range(20))
    chi = sum((n - expected) ** 2 / expected for n in drawn.values())
    assert chi < 43.8  # the 0.1 % point of χ² with 19 degrees of freedom
    assert any(len(set(draw_training_batch(20, 32, "k", t))) < 20 for t in range(50))


def test_a_batch_may_be_larger_than_the_domain():
    assert sorted(set(draw_training_batch(1, 5, "k"))) == [0]
    assert len(draw_training_batch(3, 64, "k")) == 64


def test_another_key_is_another_batch_and_the_same_key_the_same():
    keys = [("k", 0, "a"), ("k", 1, "a"), ("k", 0, "b"), ("l", 0, "a")]
    assert len({tuple(draw_training_batch(1000, 8, *key)) for key in keys}) == len(keys)
    assert len({tuple(draw_measure_batches(1000, 1, *key)[0]) for key in keys}) == len(keys)
    assert draw_training_batch(1000, 8, *keys[0]) == draw_training_batch(1000, 8, *keys[0])


@pytest.mark.parametrize("num_images", [1, 31, 32, 33, 64, 100, 128, 129, 1000])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_measured_batches_are_disjoint_and_at_most_all_images(num_images, batches):
    found = draw_measure_batches(num_images, batches, "k", 3)
    flat = [i for batch in found for i in batch]
    assert len(flat) == len(set(flat)) == min(num_images, batches * MEASURE_BATCH)
    assert set(flat) <= set(range(num_images))
    assert all(len(batch) == MEASURE_BATCH for batch in found[:-1])
    assert 1 <= len(found[-1]) <= MEASURE_BATCH


def test_more_batches_begin_with_the_same_ones():
    assert draw_measure_batches(200, 4, "k")[:2] == draw_measure_batches(200, 2, "k")


def test_measured_images_are_uniform():
    drawn = Counter(i for t in range(300) for i in draw_measure_batches(64, 1, "k", t)[0])
    chi = sum((n - 150) ** 2 / 150 for n in drawn.values())
    assert chi < 103.5  # the 0.1 % point of χ² with 63 degrees of freedom


def test_no_global_generator_is_used_or_moved():
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = draw_training_batch(50, 8, "k"), draw_measure_batches(50, 1, "k")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    torch.manual_seed(2)
    assert (draw_training_batch(50, 8, "k"), draw_measure_batches(50, 1, "k")) == first
