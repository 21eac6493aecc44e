"""CORAL against DomainBed's formula, and the gap it is meant to close."""

from itertools import combinations

import pytest
import torch

from dspreg.algorithms import CORAL, ERM
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain


def gap(weights, batches):
    """Mean over pairs of the squared differences of means and covariances, entry by entry."""
    moments = []
    for b in batches:
        f = plain.features(weights, b.x)
        moments.append((f.mean(0), torch.cov(f.T)))
    terms = []
    for (mean, covariance), (other_mean, other_covariance) in combinations(moments, 2):
        width = len(mean)
        means = sum((mean[i] - other_mean[i]) ** 2 for i in range(width)) / width
        entries = [(covariance[i, j] - other_covariance[i, j]) ** 2 for i in range(width) for j in range(width)]
        terms.append(means + sum(entries) / width**2)
    return sum(terms) / len(terms)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + 2.5 * gap(weights, batches)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(CORAL(weight=2.5), step, domains, optimiser)


def test_the_log_has_the_loss_and_the_gap():
    stack = plain.ready(CORAL(weight=2.5), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    log = train_step(stack, batches)
    expected = gap(weights, batches).item()
    assert log["CORAL.gap"].item() == pytest.approx(expected, rel=1e-12)
    assert log["loss"].item() == pytest.approx(plain.pooled(weights, batches).item() + 2.5 * expected, rel=1e-12)


def test_single_samples_have_means_and_no_covariance():
    stack = plain.ready(CORAL(weight=1.0), 2)
    batches = toy_batches(0, 2, (1, 1))
    a, b = (plain.features(plain.weights_of(stack), batch.x)[0] for batch in batches)
    assert train_step(stack, batches)["CORAL.gap"].item() == pytest.approx(((a - b) ** 2).mean().item(), rel=1e-12)


def test_domains_end_with_closer_moments_than_under_erm():
    gaps = {}
    for algorithm in (ERM(), CORAL(weight=10.0)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh = toy_batches(10_000, 3, (500, 500, 500))
        weights = plain.weights_of(stack)
        gaps[type(algorithm)] = gap(weights, fresh).item()
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.5  # not by giving up on the task: a third would be chance
    assert gaps[CORAL] < gaps[ERM] / 5
