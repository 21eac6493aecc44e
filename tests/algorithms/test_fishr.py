"""Fishr against per-sample gradients by autograd, and the variances it is meant to match."""

import pytest
import torch

from dspreg.algorithms import ERM, Fishr
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain

WARMUP = 2


def variances(weights, batch):
    """Of every entry of the classifier's gradient, one backward pass per sample."""
    rows = []
    for i in range(len(batch)):
        loss = plain.cross_entropy(weights, batch.x[i : i + 1], batch.y[i : i + 1])
        grads = torch.autograd.grad(loss, weights[2:], create_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    rows = torch.stack(rows)
    return rows.var(0, unbiased=False)


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("warmup", [0, WARMUP])
def test_steps_are_those_of_the_formula(domains, optimiser, warmup):
    averages = [0.0] * domains

    def step(weights, batches, by_hand, t):
        if t == warmup > 0 and isinstance(by_hand, plain.Adam):
            by_hand.__init__()
        used = []
        for d, batch in enumerate(batches):
            average = 0.8 * averages[d] + 0.2 * variances(weights, batch)
            averages[d] = average.detach()
            used.append(average / 0.2)
        mean = sum(used) / domains
        penalty = sum(((v - mean) ** 2).mean() for v in used) / domains
        loss = plain.pooled(weights, batches) + (30.0 if t >= warmup else 0.0) * penalty
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(Fishr(weight=30.0, warmup=warmup, ema=0.8), step, domains, optimiser)


def test_variances_end_closer_than_under_erm():
    gaps = {}
    for algorithm in (ERM(), Fishr(weight=100.0, warmup=20, ema=0.5)):
        stack = plain.ready(algorithm, 3)
        stack.stack.optimizer.param_groups[0]["lr"] = 0.01
        for t in range(300):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        weights, fresh = plain.weights_of(stack), toy_batches(10_000, 3, (100, 100, 100))
        each = torch.stack([variances(weights, b).detach() for b in fresh])
        gaps[type(algorithm)] = float((each - each.mean(0)).square().mean())
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.5
    assert gaps[Fishr] < gaps[ERM] / 2


def test_an_average_that_is_none():
    with pytest.raises(ValueError, match="ema=1"):
        Fishr(ema=1.0)
