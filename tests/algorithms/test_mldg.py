"""MLDG against DomainBed's loop over pairs, and the other domains it is meant to help."""

import copy

import pytest
import torch

from dspreg.algorithms import ERM, MLDG, SAM
from dspreg.randomness import generator
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain


def order_of(t, domains):
    """The random order of a step, as keyed draws give it."""
    return torch.randperm(domains, generator=generator("toy", t, "MLDG")).tolist()


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("tests", [1, 2])
def test_steps_are_those_of_the_loop(domains, optimiser, tests):
    lr = {"sgd": 0.1, "adam": 0.05}[optimiser]

    def step(weights, batches, by_hand, t):
        order = order_of(t, domains)
        m = min(tests, domains - 1)
        total = [torch.zeros_like(w) for w in weights]
        for k, i in enumerate(order[: domains - m]):
            j = order[domains - m :][k % m]
            g = plain.gradient(plain.cross_entropy(weights, batches[i].x, batches[i].y), weights)
            inner = [w.detach().clone().requires_grad_() for w in weights]
            plain.Adam(lr=lr).step(inner, g)  # a new one for every pair
            ahead = plain.gradient(plain.cross_entropy(inner, batches[j].x, batches[j].y), inner)
            total = [a + (b + 0.7 * c) / domains for a, b, c in zip(total, g, ahead, strict=True)]
        by_hand.step(weights, total)

    plain.assert_same_steps(MLDG(beta=0.7, n_meta_test=tests), step, domains, optimiser)


def test_weight_decay_is_that_of_the_run():
    stack = plain.ready(MLDG(), 3)
    stack.stack.optimizer.param_groups[0]["weight_decay"] = 0.3
    g = {n: torch.randn_like(p) for n, p in stack.net.named_parameters()}
    other = copy.deepcopy(stack.net)
    adam = torch.optim.Adam(other.parameters(), lr=0.05, weight_decay=0.3)
    for n, p in other.named_parameters():
        p.grad = g[n]
    adam.step()
    step = stack.first_step(type(stack.gradient(lambda b: stack.loss(stack(b)), toy_batches(0, 3))[1])(g))
    for (n, moved), (_, p) in zip(other.named_parameters(), stack.net.named_parameters(), strict=True):
        torch.testing.assert_close(p.detach() + step[n], moved.detach(), rtol=1e-7, atol=1e-10)


def test_all_passes_of_a_step_take_the_same_pairs():
    stack = plain.ready(SAM(MLDG()), 5)
    batches = toy_batches(0, 5, plain.SIZES)
    assert [tuple(b.domain for b in pair) for pair in stack.base.pairs(batches)] == [
        tuple(b.domain for b in pair) for pair in stack.base.pairs(batches)
    ]
    orders = {tuple(order_of(t, 5)) for t in range(10)}
    assert len(orders) > 5  # and other pairs in other steps


def test_every_domain_gets_a_turn():
    stack = plain.ready(MLDG(n_meta_test=2), 3)
    seen = set()
    for t in range(20):
        stack.stack.steps = t
        seen |= {tuple(b.domain for b in pair) for pair in stack.pairs(toy_batches(t, 3))}
    assert len(seen) == 6


def test_a_step_on_one_domain_helps_the_others_more_than_after_erm():
    """The inner product of the domains' gradients, relative to their lengths, at the end of training."""
    cosines = {}
    for algorithm in (ERM(), MLDG(beta=10.0, n_meta_test=1)):
        stack = plain.ready(algorithm, 3)
        for group in stack.stack.optimizer.param_groups:
            group["lr"] = 0.01
        for t in range(300):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        weights = plain.weights_of(stack)
        fresh = toy_batches(10_000, 3, (1000, 1000, 1000))
        flat = [
            torch.cat([g.reshape(-1) for g in plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights)])
            for b in fresh
        ]
        pairs = [(0, 1), (0, 2), (1, 2)]
        cosines[type(algorithm)] = sum(float(torch.cosine_similarity(flat[i], flat[j], 0)) for i, j in pairs) / 3
    assert cosines[MLDG] > cosines[ERM]
