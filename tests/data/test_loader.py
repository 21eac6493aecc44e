"""Batches are functions of their key: not of what was drawn before, and not of who made them."""

import multiprocessing.reduction
import random

import numpy as np
import pytest
import torch
from PIL import Image

from dspreg.data.loader import DomainSplit, MeasureSampler, Positions, SequentialBatches, TrainingSteps
from dspreg.data.readers import iterate_batches
from dspreg.data.sampling import draw_measure_batches, draw_training_batch
from dspreg.data.transforms import Transform
from dspreg.randomness import seed_for

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
KEY = ("toy", ("target",), 0, 0)


def images(n, seed):
    """(image, label) pairs in memory; the label is the position, so that a batch says what is in it."""
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 10, 12, 3), np.uint8)
    return [(Image.fromarray(p), i) for i, p in enumerate(pixels)]


ART, PHOTO = images(40, 1), images(70, 2)


def parts(augment=False):
    transform = Transform(8, MEAN, STD, "domainbed" if augment else "none")
    return [
        DomainSplit("art", ART, list(range(39, 4, -1)), transform),
        DomainSplit("photo", PHOTO, range(3, 70), transform),
    ]


def flat(value):
    """All tensors in nested lists and tuples, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in flat(each)]


def same(one, other):
    ours, theirs = flat(one), flat(other)
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def states():
    legacy = np.random.get_state()
    return torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2], random.getstate()


def disturb():
    torch.rand(3), np.random.rand(3), random.random()


def measured_batches(made):
    return [(batch.x, batch.y) for each in made.values() for batch in each]


SOURCES = {
    "training": lambda augment, workers: iterate_batches(TrainingSteps(parts(augment), 5, KEY), range(3, 9), workers),
    "in order": lambda augment, workers: iterate_batches(
        o := SequentialBatches(parts(augment), 16, KEY), o.order(), workers
    ),
    "measured": lambda augment, workers: measured_batches(MeasureSampler(parts(), KEY, workers=workers)(4, 2)),
}


# What is in a batch.


def test_a_training_batch_is_drawn_by_position_from_each_part():
    made = TrainingSteps(parts(), 6, KEY)[11]
    assert len(made) == 2
    for part, (x, y) in zip(parts(), made, strict=True):
        places = draw_training_batch(len(part), 6, *KEY, 11, part.domain)
        assert y.tolist() == [part.positions[i] for i in places]
        assert y.dtype == torch.int64
        for shown, position in zip(x, y.tolist(), strict=True):
            assert torch.equal(part.transform.normalise(shown), part.transform(part.images[position][0]))


def test_an_augmented_image_has_random_numbers_of_its_own():
    part = parts(augment=True)[0]
    x, y = part.batch([0, 0, 7], *KEY, 5)
    assert y.tolist() == [39, 39, 32]
    for place, position in enumerate(y.tolist()):
        torch.manual_seed(seed_for(*KEY, 5, "art", place, "augment"))
        assert torch.equal(part.transform.normalise(x[place]), part.transform(ART[position][0]))
    assert not torch.equal(x[0], x[1])  # the same image twice in a batch is augmented twice


def test_steps_and_domains_are_augmented_differently():
    transform = Transform(8, MEAN, STD, "domainbed")
    seen = [DomainSplit(d, ART, [0], transform).batch([0], *KEY, t)[0] for d in ("art", "photo") for t in range(3)]
    assert len({tuple(x.flatten().tolist()) for x in seen}) == 6


@pytest.mark.parametrize("size", [1, 7, 16, 35, 36, 1000])
def test_in_order_shows_every_image_once_and_in_order(size):
    batches = SequentialBatches(parts(), size)
    seen = [[], []]
    sizes = [[], []]
    for (p, _), (x, y) in zip(batches.order(), iterate_batches(batches, batches.order(), 0), strict=True):
        assert len(x) == len(y)
        seen[p] += y.tolist()
        sizes[p].append(len(y))
    assert seen == [list(range(39, 4, -1)), list(range(3, 70))]
    assert all(n == size for each in sizes for n in each[:-1])
    assert [p for p, _ in batches.order()] == sorted(p for p, _ in batches.order())


def test_an_empty_part_has_no_batches():
    assert SequentialBatches([DomainSplit("none", ART, [], Transform(8, MEAN, STD))], 4).order() == []


def test_measured_batches_are_plain_disjoint_and_of_their_domain():
    found = MeasureSampler(parts(), KEY)(9, 2)
    assert list(found) == ["art", "photo"]
    for d, (part, batches) in enumerate(zip(parts(), found.values(), strict=True)):
        places = draw_measure_batches(len(part), 2, *KEY, 9, part.domain)
        assert [b.y.tolist() for b in batches] == [[part.positions[i] for i in which] for which in places]
        assert {b.domain for b in batches} == {d}
        labels = [y for b in batches for y in b.y.tolist()]
        assert len(labels) == len(set(labels)) == min(64, len(part))
        for batch in batches:
            expected = torch.stack([part.transform(part.images[y][0]) for y in batch.y.tolist()])
            assert torch.equal(batch.x, expected)


# Whatever ran before, and whoever made it.


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("which", SOURCES)
@pytest.mark.parametrize("workers", [0, 2])
def test_global_generators_neither_matter_nor_move(which, augment, workers):
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = states()
    first = list(SOURCES[which](augment, workers))
    assert states() == before
    disturb()
    assert same(list(SOURCES[which](augment, workers)), first)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("which", SOURCES)
def test_any_number_of_workers_gives_the_same_bits(which, augment):
    alone = list(SOURCES[which](augment, 0))
    assert len(alone) > 2
    for workers in (1, 2, 4):
        assert same(list(SOURCES[which](augment, workers)), alone)


def test_a_step_does_not_depend_on_the_steps_before():
    steps = TrainingSteps(parts(True), 5, KEY)
    assert same(steps[7], list(iterate_batches(steps, range(3, 9), 0))[4])
    assert not same(steps[7], steps[8])


@pytest.mark.parametrize(
    "source", [TrainingSteps(parts(True), 5, KEY), SequentialBatches(parts(), 5), Positions(parts())]
)
def test_what_makes_batches_can_be_sent_to_a_process_that_was_not_forked(source):
    pickler = multiprocessing.reduction.ForkingPickler
    again = pickler.loads(pickler.dumps(source))
    item = {TrainingSteps: 3, SequentialBatches: (1, 2), Positions: (0, (1, 2))}[type(source)]
    assert same(again[item], source[item])
