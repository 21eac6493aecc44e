"""Weights of images in the loss, and batches in which every class is as likely: against closed forms and loops."""

from collections import Counter

import numpy as np
import pytest
import torch

from dspreg.data.balance import image_weights, positions_by_class
from dspreg.data.loader import DomainSplit, TrainingSteps
from dspreg.data.sampling import draw_balanced_batch
from dspreg.data.transforms import Transform
from dspreg.errors import DataError
from helpers.images import picture

LABELS = {"a": [0] * 8 + [1] * 2, "b": [0, 1, 1, 2]}


def test_given_weights_count_within_a_domain():
    given = {"a": [1.0, 2, 3, 4, 0, 1, 2, 3, 4, 5], "b": None}
    a, b = image_weights(LABELS, given, balance=False)
    assert a.tolist() == pytest.approx([w / 2.5 for w in given["a"]])
    assert b.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_with_balance_every_class_has_the_same_weight_in_a_step(seed):
    """In the mean over what a step draws, which has as many images of every domain, however large it is."""
    random = np.random.default_rng(seed)
    labels = {d: random.integers(0, 4, int(random.integers(5, 60))).tolist() for d in "abc"}
    given = {"a": random.random(len(labels["a"])).tolist(), "b": None, "c": random.random(len(labels["c"])).tolist()}
    weights = dict(zip("abc", image_weights(labels, given, balance=True), strict=True))
    of_class = Counter()
    for d in "abc":
        for label, weight in zip(labels[d], weights[d].tolist(), strict=True):
            of_class[label] += weight / len(labels[d]) / 3
    present = set().union(*map(set, labels.values()))
    assert of_class == pytest.approx({label: 1 / len(present) for label in present}, abs=1e-6)


def test_a_domain_of_zeros_is_refused():
    with pytest.raises(DataError, match="all images of the domain 'b' that are trained on have weight 0"):
        image_weights(LABELS, {"a": None, "b": [0.0] * 4}, balance=False)


def test_balanced_batches_have_every_class_as_often_and_every_image_of_a_class():
    by_class = positions_by_class([5] * 90 + [2] * 9 + [7])
    assert by_class == [list(range(90, 99)), list(range(90)), [99]]
    drawn = [draw_balanced_batch(by_class, 32, "key", t, "d") for t in range(1_000)]
    counts = Counter(i for batch in drawn for i in batch)
    share = 32_000 / 3
    for positions in by_class:
        expected = share / len(positions)
        for i in positions:
            assert abs(counts[i] - expected) < 6 * expected**0.5
    assert drawn[3] == draw_balanced_batch(by_class, 32, "key", 3, "d")
    assert drawn[3] != draw_balanced_batch(by_class, 32, "key", 3, "e")


class Pictures(list):
    @property
    def labels(self):
        return [label for _, label in self]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_any_number_of_readers_gives_the_same_balanced_batches(workers):
    from contextlib import closing

    from dspreg.data.readers import iterate_batches

    images = Pictures((picture(i, (8, 8)), [0, 0, 0, 0, 1, 0, 2][i % 7]) for i in range(21))
    transform = Transform(8, (0.5,) * 3, (0.5,) * 3)
    parts = [DomainSplit(name, images, list(range(21))[::-1], transform) for name in ("a", "b")]
    steps = TrainingSteps(parts, 6, ("key",), balanced=True)
    with closing(iterate_batches(steps, range(5), workers)) as made:
        for t, batches in enumerate(made):
            for part, chosen, (x, y) in zip(parts, steps.chosen(t), batches, strict=True):
                by_hand = [images[part.positions[i]] for i in chosen]
                assert y.tolist() == [label for _, label in by_hand]
                naive = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image, _ in by_hand])
                assert torch.equal(x, naive)
