"""GGA-L against its formula, and the minima it is meant to leave and to keep."""

import pytest
import torch

from dspreg.algorithms import ERM, GGAL, SAM, Algorithm, Compatibility
from dspreg.batches import Batch
from dspreg.randomness import generator
from dspreg.testing import toy_batches
from dspreg.training import train_step
from dspreg.vectors import theta
from reference import plain
from reference.agreement import cosines
from reference.batch_norm import assert_taken_in_once


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_formula(domains, optimiser):
    def step(weights, batches, by_hand, t):
        random = generator("toy", t, "GGAL")
        pairs = cosines(weights, batches)
        scale = 0.3 * (1 - sum(pairs) / len(pairs))
        noise = [torch.randn(w.shape, generator=random, dtype=torch.float64) for w in weights]
        g = plain.gradient(plain.pooled(weights, batches), weights)
        by_hand.step(weights, [x + scale * xi for x, xi in zip(g, noise, strict=True)])

    plain.assert_same_steps(GGAL(gamma=0.3), step, domains, optimiser)


def after_one(algorithm, batches):
    stack = plain.ready(algorithm, 3, "sgd")
    log = train_step(stack, batches)
    return theta(stack.net).flat(), log


def test_domains_that_agree_get_no_noise():
    b = toy_batches(0, 3)[1]
    alike = [Batch(b.x, b.y, d) for d in range(3)]
    ours, log = after_one(GGAL(gamma=10.0), alike)
    torch.testing.assert_close(ours, after_one(ERM(), alike)[0], rtol=0, atol=1e-12)
    assert log["GGAL.similarity"].item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("gamma", "domains"), [(0.0, 3), (10.0, 1)])
def test_without_noise_or_without_other_domains_it_is_erm(gamma, domains):
    batches = toy_batches(0, 3)[:domains]
    assert torch.equal(after_one(GGAL(gamma=gamma), batches)[0], after_one(ERM(), batches)[0])


def test_the_noise_is_as_large_as_the_domains_disagree():
    """RMS of what is added, over γ (1 − mean cosine)."""
    batches = toy_batches(0, 3)
    stack = plain.ready(GGAL(gamma=0.3), 3)
    objective = lambda b: stack.loss(stack(b))  # noqa: E731
    with stack.stack.stepping(record=False):
        added = stack.gradient(objective, batches)[1] - stack.base.gradient(objective, batches)[1]
    expected = 0.3 * (1 - sum(cosines(plain.weights_of(stack), batches)) / 3)
    assert added.flat().square().mean().sqrt().item() == pytest.approx(expected, rel=0.25)  # 75 parameters


def test_all_passes_of_a_step_see_the_same_noise_and_other_steps_another():
    stack = plain.ready(SAM(GGAL(gamma=0.3)), 3)
    batches, seen = toy_batches(0, 3), []
    for t in (0, 0, 1):
        stack.stack.steps = t
        seen.append(stack.base.gradient(lambda b: stack.loss(stack(b)), batches)[1].flat())
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


class Valleys(Algorithm):
    """A landscape over one bias b instead of a loss: ¼(b² − 1)² for the mean of two domains.

    Around b = 1 the domains are alike; for b < 0 they want to go opposite ways, and b = −1 is a minimum of the mean
    alone. Another bias has a slope in both domains, as gradients of exactly 0 have no cosine.
    """

    compatibility = Compatibility(replaces=frozenset({"loss"}))

    def loss(self, out):
        b, other, _ = self.net.classifier.bias
        apart = torch.stack([(1 if d == 0 else -1) * (-b).clamp(min=0).square() for d in out.domains])
        return 0.25 * (b * b - 1) ** 2 + 1e-3 * other + (out.weights * apart).sum()


def test_it_leaves_a_minimum_where_domains_disagree_and_keeps_one_where_they_agree_and_erm_leaves_neither():
    """What the noise is for. On the toy problem its gradients agree no more than ERM's at the same loss."""

    def after(algorithm, start):
        stack = plain.ready(algorithm, 2, "sgd")
        with torch.no_grad():
            stack.net.classifier.bias[0] = start
        for t in range(200):
            train_step(stack, toy_batches(t, 2))
        return stack.net.classifier.bias[0].item()

    for start in (-1.0, 1.0):
        assert after(GGAL(Valleys(), gamma=2.0), start) == pytest.approx(1.0, abs=1e-3)
        assert after(Valleys(), start) == pytest.approx(start, abs=1e-3)


def test_batch_norm_takes_the_batch_in_once():
    assert_taken_in_once(GGAL(), ERM())


@pytest.mark.parametrize("gamma", [-0.1, float("inf"), float("nan")])
def test_a_noise_that_is_none(gamma):
    with pytest.raises(ValueError, match="wanted a finite number ≥ 0"):
        GGAL(gamma=gamma)
