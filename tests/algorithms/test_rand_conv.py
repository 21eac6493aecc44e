"""RandConv against its formula with convolutions by hand, and the textures it is meant to ignore."""

import math

import pytest
import torch

from dspreg.algorithms import ERM, RandConv, parse
from dspreg.errors import ConfigError
from dspreg.randomness import seed_for, seeded
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import pictures, plain

WEIGHT = 2.0


def draws(t, mix, p):
    """The random numbers of step t in their order: for each copy whether, which size, how much, and the kernel."""
    found = []
    with seeded("toy", t, "noise"):
        for _ in range(3):
            if torch.rand(()) >= p:
                found.append(None)
                continue
            k = (1, 3, 5, 7)[torch.randint(4, ())]
            share = float(torch.rand(())) if mix else 1.0
            found.append((torch.randn(3, 3, k, k).double() / math.sqrt(3 * k * k), share))
    return found


def convolved(x, drawn):
    """Pixel by pixel, zeros around the image."""
    if drawn is None:
        return x
    kernel, share = drawn
    k, side = kernel.shape[-1], x.shape[-1]
    result = torch.zeros_like(x)
    for row in range(side):
        for column in range(side):
            for i in range(k):
                for j in range(k):
                    r, c = row + i - k // 2, column + j - k // 2
                    if 0 <= r < side and 0 <= c < side:
                        result[:, :, row, column] += x[:, :, r, c] @ kernel[:, :, i, j].T
    return share * result + (1 - share) * x


def predict(weights, x):
    return pictures.late(weights, pictures.early(weights, x))


@plain.problems
@plain.optimisers
@pytest.mark.parametrize(("mix", "p"), [(True, 1.0), (False, 0.5)])
def test_steps_are_those_of_the_loop(domains, optimiser, mix, p):
    def step(weights, batches, by_hand, t):
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        z = [predict(weights, convolved(x, drawn)) for drawn in draws(t, mix, p)]
        each = [one.exp() / one.exp().sum(1, keepdim=True) for one in z]
        mean = sum(each) / 3
        kl = sum((one * (one / mean).log()).sum(1).mean() for one in each) / 3
        by_hand.step(weights, plain.gradient(pictures.mean_risk(z[0], y) + WEIGHT * kl, weights))

    pictures.assert_same_steps(RandConv(weight=WEIGHT, mix=mix, p=p), step, domains, optimiser)


def test_there_are_steps_with_and_without():
    assert seed_for("toy", 0, "noise") == seed_for("toy", 0, "noise")
    drawn = [each is None for t in range(3) for each in draws(t, False, 0.5)]
    assert True in drawn
    assert False in drawn  # the test above has both


def test_prediction_and_measuring_see_plain_images():
    plainly, stack = pictures.ready(ERM(), 3), pictures.ready(RandConv(), 3)
    batch = toy_batches(0, inputs=pictures.IMAGE)[0]
    with evaluation_mode(stack):
        assert torch.equal(stack.predict(batch.x), plainly.predict(batch.x))
        assert torch.equal(stack.measured(batch)(batch.x), plainly.predict(batch.x))


def test_what_is_above_sees_every_sample_once():
    stack = pictures.ready(RandConv(), 3)
    batches = toy_batches(0, inputs=pictures.IMAGE, sizes=(4, 5, 6))
    out = stack(batches)
    assert out.sizes == (4, 5, 6)
    assert len(out.features) == len(out.logits) == 15
    assert torch.equal(out.labels, torch.cat([b.y for b in batches]))


def test_mixed_images_are_compared_with_their_own_copies():
    """Under a layer that crops and pairs domains of unequal size all three copies still are of one mixture."""
    stack = pictures.ready(parse("Mixup+RandConv(mix=False, p=0.001)"), 3)  # none is changed, so that all agree
    log = train_step(stack, toy_batches(0, inputs=pictures.IMAGE, sizes=(4, 7, 5)))
    assert log["RandConv.inconsistency"].item() == pytest.approx(0.0, abs=1e-14)


def test_probabilities_depend_less_on_unseen_textures_than_under_erm():
    spreads = {}
    for algorithm in (ERM(), RandConv(weight=1.0)):
        stack = pictures.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (16, 16, 16), inputs=pictures.IMAGE))
        fresh, weights = toy_batches(10_000, 3, (100, 100, 100), inputs=pictures.IMAGE), pictures.weights_of(stack)
        x, y = torch.cat([b.x for b in fresh]), torch.cat([b.y for b in fresh])
        p = torch.stack([predict(weights, convolved(x, draws(t, True, 1.0)[0])).softmax(1) for t in range(1000, 1010)])
        spreads[type(algorithm)] = (p * (p / p.mean(0)).log()).sum(2).mean().item()
        accuracy = (predict(weights, x).argmax(1) == y).double().mean()
        assert accuracy > 0.6  # not by one answer for all: a third would be chance
    assert spreads[RandConv] < spreads[ERM] / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, r"RandConv: weight=-1\.0; wanted a finite number ≥ 0"),
        ({"p": 0.0}, r"RandConv: p=0\.0; wanted a probability above 0, at most 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        RandConv(**options)


def test_vectors_and_two_of_them_are_refused_by_name():
    stack = plain.ready(RandConv(), 3)
    with pytest.raises(ConfigError, match=r"RandConv wants images \(B, C, H, W\), and these are \(6, 5\)"):
        train_step(stack, toy_batches(0))
    with pytest.raises(ConfigError, match="RandConv stands twice in this stack"):
        pictures.ready(parse("RandConv+RandConv"), 3)
