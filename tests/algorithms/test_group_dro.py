"""GroupDRO against DomainBed's loop, and the worst domain it is meant to help."""

import math

import pytest
import torch

from dspreg.algorithms import ERM, SAM, GroupDRO
from dspreg.batches import Batch
from dspreg.testing import toy_batches
from dspreg.training import train_step
from reference import plain


def reweighted(q, risks, eta):
    """DomainBed's loop: domain by domain q_d ← q_d · exp(η CE_d), then to a sum of one."""
    for d, risk in enumerate(risks):
        q[d] = q[d] * math.exp(eta * risk.item())
    total = sum(q)
    q[:] = [each / total for each in q]
    return sum(share * risk for share, risk in zip(q, risks, strict=True))


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_loop(domains, optimiser):
    q = [1.0] * domains

    def step(weights, batches, by_hand, t):
        risks = [plain.cross_entropy(weights, b.x, b.y) for b in batches]
        by_hand.step(weights, plain.gradient(reweighted(q, risks, eta=2.0), weights))

    plain.assert_same_steps(GroupDRO(eta=2.0), step, domains, optimiser)
    assert max(q) - min(q) > 0.02


def test_weights_are_carried_on_and_logged():
    stack = plain.ready(GroupDRO(eta=0.7), 3)
    q = [1.0] * 3
    for t in range(4):
        weights, batches = plain.weights_of(stack), toy_batches(t, 3, plain.SIZES)
        loss = reweighted(q, [plain.cross_entropy(weights, b.x, b.y) for b in batches], eta=0.7)
        log = train_step(stack, batches)
        assert log["loss"].item() == pytest.approx(loss.item(), rel=1e-12)
        assert log["GroupDRO.largest_weight"].item() == pytest.approx(max(q), rel=1e-12)
        assert stack.log_q.softmax(0).tolist() == pytest.approx(q, rel=1e-12)


def test_evaluating_twice_moves_the_weights_once():
    stack = plain.ready(GroupDRO(eta=5.0), 3)
    batches = toy_batches(0)
    with stack.stack.stepping(record=False):
        first, again = stack.loss(stack(batches)), stack.loss(stack(batches))
        assert stack.log_q.tolist() == [0, 0, 0]
    assert torch.equal(first, again)
    assert stack.log_q.tolist() != [0, 0, 0]


def test_the_risks_that_count_are_those_where_the_weights_are():
    stack = plain.ready(SAM(GroupDRO(eta=1.0), rho=2.0), 3)
    weights, batches = plain.weights_of(stack), toy_batches(0, 3, plain.SIZES)
    train_step(stack, batches)  # looks at the risks far uphill as well
    risks = [plain.cross_entropy(weights, b.x, b.y).item() for b in batches]
    assert stack.base.log_q.tolist() == pytest.approx(risks, rel=1e-12)


def test_a_step_on_some_of_the_domains_leaves_the_others():
    stack = plain.ready(GroupDRO(eta=1.0), 3)
    train_step(stack, toy_batches(0))
    before, weights, batches = stack.log_q.clone(), plain.weights_of(stack), toy_batches(1)
    train_step(stack, [batches[2], batches[0]])
    assert stack.log_q[1] == before[1]
    for d in (0, 2):
        risk = plain.cross_entropy(weights, batches[d].x, batches[d].y).item()
        assert (stack.log_q[d] - before[d]).item() == pytest.approx(risk, rel=1e-12)


def contradicting(t):
    """Three domains share a rule, the last, of few samples, has another: no network can please all."""
    batches = toy_batches(t, 4, (16, 16, 16, 8))
    odd = batches[3]
    return [*batches[:3], Batch(odd.x, 2 - odd.y, 3)]


def test_the_worst_domain_does_better_than_under_erm():
    worst, last = {}, {}
    for algorithm in (ERM(), GroupDRO(eta=0.1)):
        stack = plain.ready(algorithm, 4)
        for t in range(200):
            train_step(stack, contradicting(t))
        weights = plain.weights_of(stack)
        risks = [plain.cross_entropy(weights, b.x, b.y).item() for s in range(10) for b in contradicting(9_000 + s)]
        means = [sum(risks[d::4]) / 10 for d in range(4)]
        worst[type(algorithm)], last[type(algorithm)] = max(means), means[3]
    assert last[ERM] == worst[ERM]
    assert worst[GroupDRO] < 0.8 * worst[ERM]
