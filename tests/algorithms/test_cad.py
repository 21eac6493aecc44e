"""CAD and CondCAD against their formulas, sample by sample, and the features they are meant to mix."""

import math

import pytest
import torch

from dspreg.algorithms import CAD, ERM, CondCAD
from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain

TEMPERATURE = 0.5


def bottleneck(weights, batches, conditional):
    """Over all pairs, in loops; the temperature of the scale is 0.07."""
    f = [each for b in batches for each in plain.features(weights, b.x)]
    y = [int(each) for b in batches for each in b.y]
    d = [b.domain for b in batches for _ in b.y]
    terms = []
    for i in range(len(f)):
        alike = [j for j in range(len(f)) if j != i and y[j] == y[i]]
        among = alike if conditional else [j for j in range(len(f)) if j != i]
        there = [j for j in among if d[j] != d[i]]
        if not alike or not there:
            continue
        exponentials = {j: ((f[i] * f[j]).sum() / TEMPERATURE).exp() for j in among}
        share = sum(exponentials[j] for j in there) / sum(exponentials.values())
        terms.append(-(TEMPERATURE / 0.07) * share.log())
    return sum(terms) / len(terms)


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("cls", [CAD, CondCAD])
def test_steps_are_those_of_the_formula(cls, domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + 0.4 * bottleneck(weights, batches, cls is CondCAD)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(cls(weight=0.4, temperature=TEMPERATURE), step, domains, optimiser)


@pytest.mark.parametrize("cls", [CAD, CondCAD])
def test_samples_without_partners_count_nothing(cls):
    stack = plain.ready(cls(), 2)
    first, second = toy_batches(0, 2, (3, 3))
    alone = [Batch(first.x, torch.tensor([0, 0, 1]), 0), Batch(second.x, torch.tensor([2, 2, 2]), 1)]
    found = train_step(stack, alone)[f"{cls.__name__}.bottleneck"].item()
    assert math.isfinite(found)
    assert (found == 0) == (cls is CondCAD)  # no class is in both domains
    everyone_differs = [Batch(first.x[:2], torch.tensor([0, 1]), 0), Batch(second.x[:1], torch.tensor([2]), 1)]
    stack = plain.ready(cls(), 2)
    assert train_step(stack, everyone_differs)[f"{cls.__name__}.bottleneck"].item() == 0


@pytest.mark.parametrize("cls", [CAD, CondCAD])
def test_domains_end_closer_than_under_erm(cls):
    """The spread of the domains' means, as a share of that of the features."""
    found = {}
    for algorithm in (ERM(), cls(temperature=1.0)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh, weights = toy_batches(10_000, 3, (300, 300, 300)), plain.weights_of(stack)
        each = [plain.features(weights, b.x).detach() for b in fresh]
        every = torch.cat(each)
        between = sum((f.mean(0) - every.mean(0)).square().sum() for f in each) / 3
        found[type(algorithm)] = (between / (every - every.mean(0)).square().sum(1).mean()).item()
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.6
    assert found[cls] < 0.8 * found[ERM]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CAD(weight=-1.0), "^CAD: weight=-1.0; wanted a finite number ≥ 0"),
        (lambda: CondCAD(temperature=0.0), "^CondCAD: temperature=0.0; wanted a finite number > 0"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
