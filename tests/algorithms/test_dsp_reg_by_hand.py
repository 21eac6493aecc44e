"""DSP-Reg written out anew: sensitivities sample by sample, c by the formula, the penalty differentiated twice."""

import torch

from dspreg.algorithms import DSPReg
from reference import plain
from reference.plain_sensitivity import BATCHES, coefficients

WEIGHT = 0.05


@plain.problems
@plain.optimisers
def test_steps_are_those_of_a_plain_loop(domains, optimiser):
    c = {}

    def step(weights, batches, by_hand, t):
        if t == 0:
            c["now"] = [torch.ones_like(w) for w in weights]
        if t in (1, 2):  # refresh_steps=1: before steps 1, 2, …
            c["now"] = [each.detach() for each in coefficients(weights, domains, t)]
        loss = plain.pooled(weights, batches)
        g = torch.autograd.grad(loss, weights, create_graph=True)
        penalty = sum((each * grad.square()).sum() for each, grad in zip(c["now"], g, strict=True))
        by_hand.step(weights, plain.gradient(loss + WEIGHT * penalty, weights))

    algorithm = DSPReg(weight=WEIGHT, refresh_steps=1, measure_batches=BATCHES, engine="exact")
    plain.assert_same_steps(algorithm, step, domains, optimiser)


@plain.problems
def test_the_second_sgd_step_has_measured_coefficients(domains):
    """One step alone would only ever see c = 1."""
    stack = plain.ready(DSPReg(weight=WEIGHT, refresh_steps=1, measure_batches=BATCHES), domains, "sgd")
    weights = plain.weights_of(stack)
    stack.stack.steps = 1
    ours = stack.measure_c().values()
    for a, b in zip(ours, coefficients(weights, domains, 1), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def curved(weights, batches, v):
    """JᵀΛJ v of the pooled risk: J v by the chain rule, Λ by the formula of softmax."""
    out = weights[2]
    x = torch.cat([b.x for b in batches])
    h = plain.features(weights, x).detach()
    with torch.no_grad():
        dh = (1 - h.square()) * (x @ v[0].T + v[1])
        change = dh @ out.T + h @ v[2].T + v[3]
        p = plain.logits(weights, x).softmax(1)
        bent = (p * change - p * (p * change).sum(1, keepdim=True)) / len(x)
    return torch.autograd.grad(plain.logits(weights, x), weights, bent)


@plain.problems
@plain.optimisers
def test_steps_with_gauss_newton_are_those_of_a_plain_loop(domains, optimiser):
    c = {}

    def step(weights, batches, by_hand, t):
        if t == 0:
            c["now"] = [torch.ones_like(w) for w in weights]
        if t in (1, 2):
            c["now"] = [each.detach() for each in coefficients(weights, domains, t)]
        g = plain.gradient(plain.pooled(weights, batches), weights)
        v = [each * grad for each, grad in zip(c["now"], g, strict=True)]
        part = curved(weights, batches, v)
        by_hand.step(weights, [a + 2 * WEIGHT * b for a, b in zip(g, part, strict=True)])

    algorithm = DSPReg(weight=WEIGHT, refresh_steps=1, measure_batches=BATCHES, engine="gauss_newton")
    plain.assert_same_steps(algorithm, step, domains, optimiser, name="DSPReg, gauss_newton", tolerance=1e-6)
