"""Permuted coefficients: what each control keeps, against plain loops."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from dspreg.randomness import generator
from dspreg.sensitivity.controls import reverse_ranks, shuffle, shuffle_matched


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=generator("controls", seed), dtype=torch.float64)


def deciles(like):
    """Places by decile of `like`, computed with numpy."""
    return np.array_split(np.argsort(like.numpy().ravel(), kind="stable"), 10)


def test_shuffle_keeps_the_values_and_follows_its_generator():
    values = draw(7, 11)
    one, same, other = (shuffle(values, generator("a", key)) for key in (1, 1, 2))
    assert torch.equal(one.reshape(-1).sort()[0], values.reshape(-1).sort()[0])
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, values)


@pytest.mark.parametrize("shape", [(1000,), (20, 3, 5, 7)])
def test_matched_keeps_the_values_of_every_decile(shape):
    values, like = draw(*shape), draw(*shape, seed=1)
    found = shuffle_matched(values, like, generator("b"))
    moved = 0
    for places in deciles(like):
        before, after = values.numpy().ravel()[places], found.numpy().ravel()[places]
        assert sorted(before) == sorted(after)
        moved += (before != after).mean()
    assert moved / 10 > 0.9


def test_matched_keeps_how_values_go_with_the_other_quantity_and_shuffle_does_not():
    like = draw(20_000)
    values = -like + 0.5 * draw(20_000, seed=1)

    def correlation(v):
        return float(np.corrcoef(v.numpy(), like.numpy())[0, 1])

    before = correlation(values)
    assert before < -0.85
    assert correlation(shuffle_matched(values, like, generator("c"))) == pytest.approx(before, abs=0.06)
    assert abs(correlation(shuffle(values, generator("c")))) < 0.03


@pytest.mark.parametrize(("size", "groups"), [(1, 1), (9, 1), (25, 2), (1000, 10)])
def test_groups_have_at_least_ten_entries(size, groups):
    """`like` is the place itself, so that a value can't leave its group."""
    values = torch.arange(size, dtype=torch.float64)
    found = shuffle_matched(values, values, generator("d"))
    for part, at in zip(found.tensor_split(groups), values.tensor_split(groups), strict=True):
        assert torch.equal(part.sort()[0], at)


def test_reversed_has_the_largest_value_where_the_smallest_was():
    values = draw(13, 17)
    ranks, reversed_ranks = (rankdata(v.numpy().ravel()) for v in (values, reverse_ranks(values)))
    assert np.array_equal(reversed_ranks, values.numel() + 1 - ranks)
