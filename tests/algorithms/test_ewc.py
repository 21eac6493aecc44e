"""EWC and L2-SP against their formulas written out anew, with the Fisher diagonal taken sample by sample."""

import pytest
import torch

from dspreg.algorithms import ERM, EWC, L2SP, Anchor, parse
from dspreg.errors import ConfigError
from dspreg.testing import toy_batch, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import theta
from reference import plain

WEIGHT, ALPHA, BETA, BATCHES = 30.0, 0.6, 0.2, 2
SAMPLES = 200  # batches for the expectation over labels, which the layer draws and this sums up


def fisher(weights, domains, batches):
    """Mean over domains of E_x Σ_y p(y|x) (∂ log p(y|x))², every label in turn."""
    total = [torch.zeros_like(w) for w in weights]
    for d in range(domains):
        for i in range(batches):
            batch = toy_batch(d, 32, 3, 5, 0, i, "measure")
            for x in batch.x:
                p = plain.logits(weights, x[None])[0].softmax(0).detach()
                for y in range(3):
                    g = plain.gradient(plain.cross_entropy(weights, x[None], torch.tensor([y])), weights)
                    total = [t + p[y] * each.square() for t, each in zip(total, g, strict=True)]
    return [t / (domains * batches * 32) for t in total]


def test_the_fisher_diagonal_is_that_of_the_source_data():
    """The layer draws a label for each sample; with many samples that is the sum over labels."""
    stack = plain.ready(EWC(measure_batches=SAMPLES), 2)
    measured = stack.measure_weights()
    expected = fisher(plain.weights_of(stack), 2, SAMPLES // 10)
    for name, exact in zip(["featurizer.layers.0.weight", "featurizer.layers.0.bias"], expected, strict=False):
        torch.testing.assert_close(2 * measured[name], exact, rtol=0.25, atol=0.02 * exact.max().item())
        assert torch.corrcoef(torch.stack([measured[name].flatten(), exact.flatten()]))[0, 1] > 0.98
    assert set(measured) == {"featurizer.layers.0.weight", "featurizer.layers.0.bias"}


@plain.problems
@plain.optimisers
def test_steps_are_those_of_ewc(domains, optimiser):
    kept = {}

    def step(weights, batches, by_hand, t):
        if t == 0:
            kept["start"] = [w.detach().clone() for w in weights[:2]]
            measured = plain.ready(EWC(measure_batches=BATCHES), domains).measure_weights()
            kept["f"] = [2 * w for w in measured.values()]  # with the labels that the layer draws; once
        away = [w - start for w, start in zip(weights[:2], kept["start"], strict=True)]
        penalty = sum((f * a.square()).sum() for f, a in zip(kept["f"], away, strict=True))
        by_hand.step(weights, plain.gradient(plain.pooled(weights, batches) + WEIGHT / 2 * penalty, weights))

    plain.assert_same_steps(EWC(weight=WEIGHT, measure_batches=BATCHES), step, domains, optimiser)


def test_the_fisher_diagonal_is_measured_once():
    stack = plain.ready(EWC(measure_batches=1), 3)
    seen = []
    for t in range(5):
        train_step(stack, toy_batches(t))
        seen.append((stack.refreshed_at, stack.w))
    assert {at for at, _ in seen} == {0}
    assert all(w is seen[0][1] for _, w in seen)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_l2sp(domains, optimiser):
    kept = {}

    def step(weights, batches, by_hand, t):
        if t == 0:
            kept["start"] = [w.detach().clone() for w in weights]
        old = sum((w - s).square().sum() for w, s in zip(weights[:2], kept["start"], strict=False))
        new = sum(w.square().sum() for w in weights[2:])
        loss = plain.pooled(weights, batches) + ALPHA / 2 * old + BETA / 2 * new
        by_hand.step(weights, plain.gradient(loss, weights))

    plain.assert_same_steps(L2SP(alpha=ALPHA, beta=BETA), step, domains, optimiser)


def moved(algorithm, steps=6, optimiser="adam"):
    stack = plain.ready(algorithm, 3, optimiser)
    start = theta(stack.net)
    for t in range(steps):
        train_step(stack, toy_batches(t, 3))
    return theta(stack.net) - start


def test_l2sp_without_its_second_term_is_the_anchor_of_ones_bitwise():
    ours, anchor = moved(L2SP(alpha=0.4, beta=0.0)), moved(Anchor(weight=0.2, by="ones"))
    assert torch.equal(ours.flat(), anchor.flat())


@pytest.mark.parametrize("held", [EWC(weight=1e6, measure_batches=1), L2SP(alpha=1e4)])
def test_a_strong_penalty_holds_all_but_the_classifier(held):
    free, held = moved(ERM()), moved(held)
    assert held.select("featurizer.*").norm() < free.select("featurizer.*").norm() / 2
    assert held.select("classifier.*").norm() > free.select("classifier.*").norm() / 2


def test_the_important_parameters_are_held_most():
    """Beside ERM, a parameter goes the less far the larger its F."""
    f = plain.ready(EWC(measure_batches=8), 3).measure_weights().flat()
    free, held = moved(ERM(), 100, "sgd"), moved(EWC(weight=30.0, measure_batches=8), 100, "sgd")
    shorter = (held.select("featurizer.*").flat() / free.select("featurizer.*").flat()).abs().log()
    assert torch.corrcoef(torch.stack([shorter, f.log()]))[0, 1] < -0.4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EWC(weight=-1.0), "EWC: weight=-1.0; wanted a finite number ≥ 0"),
        (lambda: L2SP(alpha=0.0), "L2SP: alpha=0.0; wanted a finite number > 0"),
        (lambda: L2SP(beta=-0.1), "L2SP: beta=-0.1; wanted a finite number ≥ 0"),
        (lambda: parse("EWC(by='ones')"), "EWC has no option 'by'. It has: weight, measure_batches, exclude"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_one_source_domain_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"EWC compares source domains and there is 1: domain 0\. Use L2SP"):
        EWC().setup(toy_task(1), lambda p: torch.optim.Adam(p))
    assert L2SP().setup(toy_task(1), lambda p: torch.optim.Adam(p)).t == 0
