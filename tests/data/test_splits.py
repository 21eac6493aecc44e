"""The split is DomainBed's, number for number."""

import math
from collections import Counter

import numpy as np
import pytest

from dspreg.data.annotations import Annotations
from dspreg.data.splits import parts_of, positions_of_test, split, split_grouped, split_stratified, steps_per_epoch
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


# Groups and parts of one's own images.


def patients(number, classes, random, most=6):
    """Labels and groups of `number` patients with 1 to `most` images each; a patient may have several classes."""
    labels, groups = [], []
    for patient in range(number):
        for _ in range(int(random.integers(1, most + 1))):
            labels.append(int(random.integers(classes)))
            groups.append(f"p{patient}")
    order = random.permutation(len(labels))
    return [labels[i] for i in order], tuple(groups[i] for i in order)


@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_on_both_sides_and_every_image_on_one(seed):
    random = np.random.default_rng(seed)
    labels, groups = patients(int(random.integers(2, 40)), 4, random)
    for trial in range(3):
        inside, out = split_grouped(labels, Annotations(groups=groups), trial, 1)
        assert sorted(inside + out) == list(range(len(labels)))
        assert inside
        assert out
        assert not {groups[i] for i in inside} & {groups[i] for i in out}


def test_every_class_keeps_its_share_as_nearly_as_whole_groups_allow():
    random = np.random.default_rng(0)
    labels, groups = patients(200, 3, random)
    counts = Counter(labels)
    for trial in range(5):
        out = split_grouped(labels, Annotations(groups=groups), trial, 0)[1]
        held = Counter(labels[i] for i in out)
        for label, count in counts.items():
            assert abs(held[label] / count - 0.2) < 0.02
    assert split_grouped(labels, Annotations(groups=groups), 0, 0) != split_grouped(
        labels, Annotations(groups=groups), 1, 0
    )


def test_the_greedy_choice_is_near_the_best_of_all_choices():
    """By brute force over all subsets of twelve groups, in squared distance of the held-out shares from 0.2."""
    random = np.random.default_rng(3)
    labels, groups = patients(12, 2, random)
    counts = Counter(labels)

    def distance(held):
        here = Counter(label for label, group in zip(labels, groups, strict=True) if group in held)
        return sum((here[label] / n - 0.2) ** 2 for label, n in counts.items())

    names = sorted(set(groups))
    best = min(distance({name for i, name in enumerate(names) if bits >> i & 1}) for bits in range(1, 2**12 - 1))
    for trial in range(10):
        out = split_grouped(labels, Annotations(groups=groups), trial, 0)[1]
        assert distance({groups[i] for i in out}) < best + 0.01


def test_without_groups_as_many_are_held_out_as_by_domainbeds_rule_and_of_every_class_its_share():
    """The stratified split, with what it loses by rounding down given to the classes that lost most."""
    for annotations in (Annotations(), Annotations(parts=("",) * len(LABELS))):
        inside, out = split_grouped(LABELS, annotations, 2, 1)
        assert sorted(inside + out) == list(range(len(LABELS)))
        assert len(out) == len(split(len(LABELS), 2, 1)[1]) == 14
        assert Counter(LABELS[i] for i in out) == {0: 10, 1: 2, 2: 1, 7: 1}  # 0.8 of class 2 is the largest rest
    thirds = [0] * 10 + [1] * 10 + [2] * 10
    assert split_grouped(thirds, Annotations(), 2, 1) == split_stratified(thirds, 2, 1)


@pytest.mark.parametrize("number", range(2, 12))
def test_small_domains_have_something_to_train_on_and_to_validate_with(number):
    for labels in ([i % 3 for i in range(number)], [0] * number):
        inside, out = split_grouped(labels, Annotations(), 0, 0)
        if len(set(labels)) < number:  # else each is all there is of its class
            assert len(out) == max(1, number // 5)
            assert {labels[i] for i in inside} == set(labels)


def test_a_group_that_has_all_of_a_class_is_trained_on():
    labels, groups = [0, 0, 0, 0, 1, 1], ("a", "b", "c", "d", "rare", "rare")
    for trial in range(10):
        inside, _ = split_grouped(labels, Annotations(groups=groups), trial, 0, 0.4)
        assert {4, 5} <= set(inside)


def test_an_empty_group_stands_by_itself():
    labels, groups = [0] * 10, ("",) * 10
    inside, out = split_grouped(labels, Annotations(groups=groups), 0, 0)
    assert (len(inside), len(out)) == (8, 2)


def test_given_parts_are_what_they_say_in_every_trial():
    parts = ("train", "val", "test", "train", "val", "test")
    for trial in range(3):
        inside, out = split_grouped([0, 0, 0, 1, 1, 1], Annotations(parts=parts), trial, 0)
        assert (sorted(inside), sorted(out)) == ([0, 3], [1, 4])
    assert positions_of_test(Annotations(parts=parts), 6) == [2, 5]
    assert positions_of_test(Annotations(), 6) == []


def test_validation_comes_from_what_is_for_training_where_none_is_given():
    parts = ("train",) * 20 + ("test",) * 5
    inside, out = split_grouped([0] * 25, Annotations(parts=parts), 0, 0)
    assert (len(inside), len(out)) == (16, 4)
    assert max(inside + out) < 20


def test_a_final_model_is_trained_on_all_but_the_test_images():
    parts = ("train", "val", "test", "", "val")
    for groups in (None, ("a", "b", "c", "d", "e")):
        inside, out = split_grouped([0, 0, 0, 1, 1], Annotations(groups, parts), 0, 0, 0.0)
        assert (sorted(inside), out) == ([0, 1, 3, 4], [])


def test_an_image_without_a_part_goes_where_its_group_goes():
    said = Annotations(groups=("a", "a", "b", "", "c"), parts=("test", "", "val", "", "train"))
    assert parts_of(said, 5) == ["test", "test", "val", "", "train"]
    inside, out = split_grouped([0] * 5, said, 0, 0)
    assert (sorted(inside), out) == ([3, 4], [2])


def test_a_domain_with_nothing_to_train_on_is_split_as_if_no_part_were_given():
    """It can be a target, of which all images are unseen."""
    parts = ("test",) * 10
    assert split_grouped([0] * 10, Annotations(parts=parts), 0, 0) == split_grouped([0] * 10, Annotations(), 0, 0)
    assert positions_of_test(Annotations(parts=parts), 10) == list(range(10))
