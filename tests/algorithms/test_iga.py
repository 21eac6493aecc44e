"""IGA against DomainBed's penalty, differentiated whole, and the gradients it is meant to bring together."""

import pytest
import torch

from dspreg.algorithms import ERM, IGA
from dspreg.errors import ConfigError
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain

WEIGHT = 0.3


def spread(weights, batches):
    """Σ_d Σ_k (g_dk − ḡ_k)², with its graph; the mean over domains is a function of the weights as well."""
    each = [torch.autograd.grad(plain.cross_entropy(weights, b.x, b.y), weights, create_graph=True) for b in batches]
    total = 0.0
    for per_domain in zip(*each, strict=True):
        mean = sum(per_domain) / len(per_domain)
        total = total + sum(((g - mean) ** 2).sum() for g in per_domain)
    return total


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + WEIGHT * spread(weights, batches)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(IGA(weight=WEIGHT), step, domains, optimiser)


def test_the_log_has_the_penalty():
    stack = plain.ready(IGA(), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    expected = spread(weights, batches).item()
    assert train_step(stack, batches)["IGA.penalty"].item() == pytest.approx(expected, rel=1e-12)


def test_gradients_of_domains_end_closer_than_under_erm():
    spreads = {}
    for algorithm in (ERM(), IGA(weight=0.3)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh, weights = toy_batches(10_000, 3, (500, 500, 500)), plain.weights_of(stack)
        spreads[type(algorithm)] = spread(weights, fresh).item()
        accuracy = sum((plain.logits(weights, b.x).argmax(1) == b.y).double().mean() for b in fresh) / 3
        assert accuracy > 0.55  # not by giving up on the task: a third would be chance
    assert spreads[IGA] < spreads[ERM] / 3


@pytest.mark.parametrize("batches", [slice(0, 1), slice(None)])
def test_without_weight_or_on_one_domain_it_is_erm_bitwise(batches):
    ends = []
    for algorithm in (ERM(), IGA(weight=0.0 if batches.stop is None else 1000.0)):
        stack = plain.ready(algorithm, 3)
        train_step(stack, toy_batches(0)[batches])
        ends.append(torch.cat([w.flatten() for w in plain.weights_of(stack)]))
    assert torch.equal(*ends)


def test_a_bad_weight_is_refused():
    with pytest.raises(ConfigError, match="IGA: weight=inf; wanted a finite number ≥ 0"):
        IGA(weight=float("inf"))
