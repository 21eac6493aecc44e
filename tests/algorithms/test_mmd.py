"""MMD against a loop over pairs of samples, and the distance it is meant to close."""

import math
from itertools import combinations

import pytest
import torch

from dspreg.algorithms import ERM, MMD
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain


def kernel(a, b):
    """Mean over all pairs of samples, those of a sample with itself included."""
    total = 0.0
    for u in a:
        for v in b:
            distance = ((u - v) ** 2).sum().clamp(min=1e-30)
            total = total + sum(torch.exp(-(10.0**k) * distance) for k in range(-3, 4))
    return total / (len(a) * len(b))


def gap(weights, batches):
    f = [plain.features(weights, b.x) for b in batches]
    return sum(kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in combinations(f, 2)) / math.comb(len(f), 2)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + 2.5 * gap(weights, batches)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(MMD(weight=2.5), step, domains, optimiser)


def test_the_log_has_the_gap():
    stack = plain.ready(MMD(weight=2.5), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    assert train_step(stack, batches)["MMD.gap"].item() == pytest.approx(gap(weights, batches).item(), rel=1e-9)


def test_domains_end_closer_than_under_erm():
    gaps = {}
    for algorithm in (ERM(), MMD(weight=1.0)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        weights, fresh = plain.weights_of(stack), toy_batches(10_000, 3, (500, 500, 500))
        means = [
            plain.features(weights, b.x).mean(0).detach() for b in fresh
        ]  # K of 500 samples is mostly its diagonal
        gaps[type(algorithm)] = sum(float((a - b).square().sum()) for a, b in combinations(means, 2))
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.5  # not by giving up on the task: a third would be chance
    assert gaps[MMD] < gaps[ERM] / 2
