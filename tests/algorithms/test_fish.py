"""Fish against its loop over domains, and the gradients it is meant to align."""

import pytest
import torch

from dspreg.algorithms import ERM, Fish
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain


def fished(meta_lr):
    def step(weights, batches, by_hand, t):
        start = [w.detach().clone() for w in weights]
        for b in batches:  # the optimiser's moments go on from domain to domain and from step to step
            by_hand.step(weights, plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights))
        with torch.no_grad():
            for w, s in zip(weights, start, strict=True):
                w.copy_(s + meta_lr * (w - s))

    return step


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("meta_lr", [0.5, 0.1])
def test_steps_are_those_of_the_loop(domains, optimiser, meta_lr):
    plain.assert_same_steps(Fish(meta_lr=meta_lr), fished(meta_lr), domains, optimiser)


def test_the_optimisers_state_is_carried_on():
    stack = plain.ready(Fish(), 3)
    for t in range(2):
        train_step(stack, toy_batches(t))
    assert {int(state["step"]) for state in stack.stack.optimizer.state.values()} == {6}
    assert stack.t == 2


def test_the_loss_in_the_log_is_the_last_domains():
    stack = plain.ready(Fish(), 3, "sgd")
    weights, batches = plain.weights_of(stack), toy_batches(0)
    log = train_step(stack, batches)
    fished(1.0)(weights, batches[:2], plain.SGD(), 0)
    expected = plain.cross_entropy(weights, batches[2].x, batches[2].y)
    assert log["loss"].item() == pytest.approx(expected.item(), rel=1e-12)


RATE = 1e-3


def moved(algorithm, batches, rate=RATE):
    """Where one step of SGD from the same start takes the weights."""
    stack = algorithm.setup(toy_task(2, dropout=0.0), lambda p: torch.optim.SGD(p, lr=rate)).double()
    train_step(stack, batches)
    return plain.weights_of(stack)


def alignment(weights, batches):
    """The inner product of the two domains' gradients."""
    first, second = (
        torch.autograd.grad(plain.cross_entropy(weights, b.x, b.y), weights, create_graph=True) for b in batches
    )
    return sum((u * v).sum() for u, v in zip(first, second, strict=True))


def test_beyond_erm_it_climbs_the_inner_product_of_the_gradients():
    """Both orders averaged: θ' − θ = −α(g₁ + g₂) + α²/2 · ∇(g₁·g₂) + O(α³)."""
    batches = toy_batches(0, 2, (8, 8))
    start = moved(ERM(), batches, rate=0.0)
    risks = [plain.cross_entropy(start, b.x, b.y) for b in batches]
    uphill = plain.gradient(alignment(start, batches), start)
    summed = plain.gradient(sum(risks), start)
    ends = moved(Fish(meta_lr=1.0), batches), moved(Fish(meta_lr=1.0), batches[::-1])
    for s, g, up, one, other in zip(start, summed, uphill, *ends, strict=True):
        beyond = ((one + other) / 2 - s + RATE * g) * 2 / RATE**2
        torch.testing.assert_close(beyond, up, rtol=0, atol=0.02 * up.abs().max().item())


@pytest.mark.parametrize("draw", [0, 1, 2])
def test_gradients_agree_more_than_after_steps_of_erm(draw):
    """ERM with twice the rate goes as far along g₁ + g₂ as Fish through both domains."""
    batches, inner = toy_batches(draw, 2, (16, 16)), {}
    for algorithm, rate in ((ERM(), 0.2), (Fish(meta_lr=1.0), 0.1)):
        stack = algorithm.setup(toy_task(2, dropout=0.0), lambda p, rate=rate: torch.optim.SGD(p, lr=rate)).double()
        for t in range(60):
            train_step(stack, batches[:: (-1) ** t])
        inner[type(algorithm)] = alignment(plain.weights_of(stack), batches).item()
    assert inner[Fish] > inner[ERM] + 1e-3
