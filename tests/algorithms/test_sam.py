"""SAM against its two lines, and the flatness it is meant to find."""

import pytest
import torch

from dspreg.algorithms import ERM, SAM
from dspreg.batches import Batch
from dspreg.networks import Featurizer
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from reference import plain
from reference.sharpness import climbed, worst_after


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        up = climbed(weights, plain.gradient(plain.pooled(weights, batches), weights), 0.3)
        by_hand.step(weights, plain.gradient(plain.pooled(up, batches), up))

    plain.assert_same_steps(SAM(rho=0.3), step, domains, optimiser)


def test_the_loss_in_the_log_is_that_where_the_weights_are():
    stack = plain.ready(SAM(rho=0.5), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    assert train_step(stack, batches)["loss"].item() == pytest.approx(plain.pooled(weights, batches).item(), rel=1e-12)


def test_both_passes_see_the_same_dropout_mask():
    masks = []

    class Watching(Featurizer):
        width = 5

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(5))

        def forward(self, x):
            mask = torch.rand(x.shape) > 0.5
            masks.append(mask)
            return x * mask * self.scale

    task = toy_task(2)
    stack = ready(SAM(), type(task)(3, task.domains, 2, Watching, ("toy",)))
    train_step(stack, toy_batches(0, 2))
    assert len(masks) == 2
    assert torch.equal(*masks)
    assert masks[0].double().std() > 0


def test_a_point_without_a_way_up_is_no_trouble():
    stack = plain.ready(SAM(), 2)
    nothing = [Batch(b.x, torch.zeros(len(b), 3).double(), b.domain) for b in toy_batches(0, 2)]  # no label, no loss
    before = plain.weights_of(stack)
    train_step(stack, nothing)
    assert all(torch.equal(*pair) for pair in zip(before, plain.weights_of(stack), strict=True))


def test_it_ends_flatter_than_erm():
    assert worst_after(SAM(rho=0.5)) < worst_after(ERM()) / 2
