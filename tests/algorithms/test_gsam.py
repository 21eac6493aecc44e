"""GSAM and SAGM against their formulas, and what they are to each other and to SAM."""

import pytest
import torch

from dspreg.algorithms import ERM, GSAM, SAGM, SAM
from dspreg.testing import toy_batches
from reference import plain
from reference.sharpness import worst_after


def gradients(weights, batches, displacement):
    """g, and the gradient at θ + displacement(g, ‖g‖)·g."""
    g = plain.gradient(plain.pooled(weights, batches), weights)
    length = sum((x * x).sum() for x in g) ** 0.5
    moved = [(w + displacement(length) * x).detach().requires_grad_() for w, x in zip(weights, g, strict=True)]
    return g, plain.gradient(plain.pooled(moved, batches), moved)


@plain.problems
@plain.optimisers
def test_gsams_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        g, p = gradients(weights, batches, lambda length: 0.3 / length)
        along = sum((x * y).sum() for x, y in zip(g, p, strict=True)) / sum((y * y).sum() for y in p)
        by_hand.step(weights, [y - 0.7 * (x - along * y) for x, y in zip(g, p, strict=True)])

    plain.assert_same_steps(GSAM(rho=0.3, alpha=0.7), step, domains, optimiser)


@plain.problems
@plain.optimisers
def test_sagms_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        g, p = gradients(weights, batches, lambda length: 0.3 / length - 0.2)
        by_hand.step(weights, [0.5 * x + 0.5 * y for x, y in zip(g, p, strict=True)])

    plain.assert_same_steps(SAGM(rho=0.3, alpha=0.2), step, domains, optimiser)


def direction(algorithm):
    stack = plain.ready(algorithm, 3)
    batches = toy_batches(0, 3, plain.SIZES)
    with stack.stack.stepping(record=False):
        return stack.gradient(lambda b: stack.loss(stack(b)), batches)[1].flat()


def test_without_alpha_gsam_is_sam():
    torch.testing.assert_close(direction(GSAM(rho=0.3, alpha=0)), direction(SAM(rho=0.3)), rtol=1e-9, atol=1e-12)


def test_what_gsam_adds_is_orthogonal_to_the_worst_gradient():
    sam = direction(SAM(rho=0.3))
    added = direction(GSAM(rho=0.3, alpha=1.0)) - sam
    assert added.norm() > 1e-3
    assert abs(float(added @ sam)) < 1e-9 * float(added.norm() * sam.norm())


@pytest.mark.parametrize("algorithm", [GSAM(rho=0.5, alpha=0.1), SAGM(rho=0.5, alpha=0.01)], ids=["GSAM", "SAGM"])
def test_it_ends_flatter_than_erm(algorithm):
    assert worst_after(algorithm) < worst_after(ERM()) / 1.5


def test_a_radius_that_is_none():
    for cls in (GSAM, SAGM):
        with pytest.raises(ValueError, match="rho=0"):
            cls(rho=0)
