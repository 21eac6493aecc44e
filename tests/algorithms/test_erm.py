"""ERM: the mean over all samples, whatever domain they are of."""

import pytest
import torch

from dspreg.algorithms import ERM
from reference import plain


@plain.problems
@plain.optimisers
def test_steps_are_those_of_a_plain_loop(domains, optimiser):
    def step(weights, batches, by_hand, t):
        by_hand.step(weights, plain.gradient(plain.pooled(weights, batches), weights))

    plain.assert_same_steps(ERM(), step, domains, optimiser)


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError):
        plain.compare("nothing", "sgd", [torch.zeros(2)], [torch.full((2,), 1e-6)])
