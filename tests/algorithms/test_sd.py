"""SD against DomainBed's formula, and the logits it is meant to keep small."""

import pytest

from dspreg.algorithms import ERM, SD
from dspreg.errors import ConfigError
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain

WEIGHT = 0.7


def mean_square(weights, batches):
    """Logit by logit."""
    each = [z**2 for b in batches for row in plain.logits(weights, b.x) for z in row]
    return sum(each) / len(each)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        loss = plain.pooled(weights, batches) + WEIGHT * mean_square(weights, batches)
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(SD(weight=WEIGHT), step, domains, optimiser)


def test_the_log_has_the_penalty():
    stack = plain.ready(SD(), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    expected = mean_square(weights, batches).item()
    assert train_step(stack, batches)["SD.penalty"].item() == pytest.approx(expected, rel=1e-12)


def test_logits_end_smaller_than_under_erm_and_the_classes_are_still_told():
    sizes, accuracies = {}, {}
    for algorithm in (ERM(), SD(weight=0.1)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh, weights = toy_batches(10_000, 3, (500, 500, 500)), plain.weights_of(stack)
        sizes[type(algorithm)] = mean_square(weights, fresh).item()
        right = [(plain.logits(weights, b.x).argmax(1) == b.y).double().mean().item() for b in fresh]
        accuracies[type(algorithm)] = sum(right) / 3
    assert sizes[SD] < sizes[ERM] / 3
    assert accuracies[SD] > accuracies[ERM] - 0.05


def test_a_bad_weight_is_refused():
    with pytest.raises(ConfigError, match=r"SD: weight=-1\.0; wanted a finite number ≥ 0"):
        SD(weight=-1.0)
