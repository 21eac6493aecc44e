"""The split is DomainBed's, number for number."""

import math
from collections import Counter

import numpy as np
import pytest

from dspreg.data.splits import split, split_stratified, steps_per_epoch
from dspreg.domainbed.seeds import seed_hash


@pytest.mark.parametrize(
    ("args", "expected"),
    [((0, 0), 894182419), ((0, 1), 1514274641), ((1, 0), 785910682), (("VLCS", "ERM", [1, 2], 1, 0), 360234358)],
)
def test_seeds_are_domainbeds(args, expected):
    assert seed_hash(*args) == expected


@pytest.mark.parametrize(
    ("num_images", "first"),
    [(10, [2, 3, 8, 1, 4, 5, 0, 9]), (1415, [222, 1032, 864, 859, 1037]), (2048, [548, 677, 1997, 977])],
)
def test_order_is_domainbeds(num_images, first):
    inside, out = split(num_images, trial=0, position=0)
    assert (out + inside)[: len(first)] == first


@pytest.mark.parametrize("num_images", [0, 1, 4, 5, 10, 1797])
@pytest.mark.parametrize("holdout", [0.0, 0.2, 0.5, 1.0])
def test_every_image_is_in_exactly_one_part(num_images, holdout):
    inside, out = split(num_images, 3, 1, holdout)
    assert sorted(inside + out) == list(range(num_images))
    assert len(out) == int(num_images * holdout)


def test_trials_and_positions_give_other_splits():
    first, again, other_trial, other_position = split(50, 0, 0), split(50, 0, 0), split(50, 1, 0), split(50, 0, 1)
    assert first == again
    assert first != other_trial != other_position != first


def test_holdout_must_be_a_fraction():
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 20.*Try 0\.2"):
        split(10, 0, 0, holdout=20)


def test_an_epoch_of_pacs_without_sketch():
    sizes = [len(split(n, trial=0, position=i)[0]) for i, n in enumerate([2048, 2344, 1670])]
    assert sizes == [1639, 1876, 1336]
    assert steps_per_epoch(sizes, 3 * 32) == 50


def test_an_epoch_has_at_least_one_step():
    assert steps_per_epoch([10, 20], 96) == 1


# Every class by itself.


def by_hand(labels, trial, position, holdout):
    """Class by class: the first ⌊holdout·n⌋ of DomainBed's order are out."""
    inside, out = split(len(labels), trial, position, 0.0)
    order = out + inside
    held = set()
    for label in set(labels):
        mine = [place for place in order if labels[place] == label]
        held |= set(mine[: math.floor(holdout * len(mine))])
    return [p for p in order if p not in held], [p for p in order if p in held]


LABELS = [0] * 50 + [1] * 13 + [2] * 4 + [3] + [7] * 5


@pytest.mark.parametrize("holdout", [0.0, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(("trial", "position"), [(0, 0), (0, 2), (3, 1)])
def test_stratified_is_the_same_order_cut_class_by_class(holdout, trial, position):
    found = split_stratified(LABELS, trial, position, holdout)
    assert found == by_hand(LABELS, trial, position, holdout)
    assert sorted(found[0] + found[1]) == list(range(len(LABELS)))


def test_every_class_keeps_its_share():
    _, out = split_stratified(LABELS, 0, 0)
    assert Counter(LABELS[place] for place in out) == {0: 10, 1: 2, 7: 1}  # of 4 and of 1 none


def test_one_class_alone_is_split_as_domainbed_does():
    assert split_stratified([5] * 1415, 0, 0) == split(1415, 0, 0)


def test_stratified_wants_a_fraction_too():
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 20.*Try 0\.2"):
        split_stratified([0] * 10, 0, 0, holdout=20)


@pytest.mark.parametrize(("trial", "position", "seed"), [(0, 1, 1514274641), (1, 0, 785910682)])
def test_the_trial_comes_before_the_position_in_the_seed(trial, position, seed):
    """DomainBed's published hashes, by hand: (0, 1) and (1, 0) are different splits."""
    order = list(range(50))
    np.random.RandomState(seed).shuffle(order)
    inside, out = split(50, trial, position)
    assert out + inside == order
