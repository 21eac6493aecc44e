"""Agreement against its formula written out anew, and what it is for."""

import pytest
import torch

from dspreg.algorithms import CORAL, ERM, SAM, Agreement, Algorithm, Compatibility, parse
from dspreg.algorithms.agreement import agreement_rates
from dspreg.batches import Batch
from dspreg.errors import ConfigError
from dspreg.randomness import generator
from dspreg.testing import check_algorithm, toy_batches
from dspreg.training import train_step
from dspreg.vectors import ParamVector, theta
from reference import plain

STRENGTH, BETA, PRIOR = 2.0, 0.8, 0.5


def rates_by_hand(gradients):
    """One number at a time: ḡ²/(ḡ² + strength·V/D) with V moderated, divided by the mean of the tensor."""
    flat = torch.stack([g.reshape(-1) for g in gradients])
    n, count = flat.shape
    means = [sum(flat[:, k]) / n for k in range(count)]
    variances = [sum((flat[d, k] - means[k]) ** 2 for d in range(n)) / (n - 1) for k in range(count)]
    typical = sum(variances) / count
    found = []
    for m, v in zip(means, variances, strict=True):
        v = (v + PRIOR * typical) / (1 + PRIOR)
        found.append(m**2 / (m**2 + STRENGTH * v / n))
    mean = sum(found) / count
    return torch.stack([r / mean for r in found]).view_as(gradients[0])


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("every", [1, 2])
def test_steps_are_those_of_the_formula(domains, optimiser, every):
    running, rates = {}, {}

    def step(weights, batches, by_hand, t):
        each = [plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights) for b in batches]
        for d, g in enumerate(each):
            old = running.get(d, [torch.zeros_like(w) for w in weights])
            running[d] = [BETA * m + (1 - BETA) * x for m, x in zip(old, g, strict=True)]
        if t % every == 0:
            rates["now"] = [rates_by_hand([running[d][i] for d in range(domains)]) for i in range(len(weights))]
        before = [w.detach().clone() for w in weights]
        by_hand.step(weights, plain.gradient(plain.pooled(weights, batches), weights))
        with torch.no_grad():
            for w, old, r in zip(weights, before, rates["now"], strict=True):
                w.copy_(old + r * (w - old))

    algorithm = Agreement(strength=STRENGTH, beta=BETA, prior=PRIOR, every=every)
    plain.assert_same_steps(algorithm, step, domains, optimiser)


def after(algorithm, batches, steps=1):
    stack = plain.ready(algorithm, 3, "sgd")
    for _ in range(steps):
        log = train_step(stack, batches, record=True)
    return theta(stack.net), log, stack


def test_domains_that_agree_take_the_whole_step():
    b = toy_batches(0, 3)[1]
    alike = [Batch(b.x, b.y, d) for d in range(3)]
    ours, log, _ = after(Agreement(strength=100.0), alike)
    torch.testing.assert_close(ours.flat(), after(ERM(), alike)[0].flat(), rtol=0, atol=1e-12)
    assert log["Agreement.rate_10"].item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("strength", "domains"), [(0.0, 3), (10.0, 1)])
def test_without_strength_or_without_other_domains_it_is_erm(strength, domains):
    batches = toy_batches(0, 3)[:domains]
    ours = after(Agreement(strength=strength), batches, steps=3)[0].flat()
    assert torch.equal(ours, after(ERM(), batches, steps=3)[0].flat())


class Tug(Algorithm):
    """Instead of a loss: the domains pull the first bias opposite ways, and the second the same way."""

    compatibility = Compatibility(replaces=frozenset({"loss"}))

    def loss(self, out):
        a, b = self.net.classifier.bias[:2]
        pulls = torch.tensor([(1.0, -0.9, 0.1)[d] for d in out.domains], dtype=a.dtype)
        return out.weights.dot(pulls * a + b)


def test_a_parameter_that_domains_pull_opposite_ways_hardly_moves():
    start = theta(plain.ready(ERM(), 3, "sgd").net)["classifier.bias"]
    moved = {}
    for name, algorithm in {"ERM": Tug(), "Agreement": Agreement(Tug(), strength=10.0, prior=0.0)}.items():
        moved[name] = after(algorithm, toy_batches(0, 3))[0]["classifier.bias"] - start
    plain_share = moved["ERM"][0] / moved["ERM"][1]
    share = moved["Agreement"][0] / moved["Agreement"][1]
    assert abs(moved["ERM"][0]) > 5e-3  # 0.1 · the mean pull of 0.2/3
    assert abs(share) < abs(plain_share) / 50
    assert abs(moved["Agreement"][1]) > abs(moved["ERM"][1])  # the mean rate of the tensor is 1


def test_signs_count_and_not_sizes():
    """Same squares, opposite signs: c is 0 for both, the rate is not the same."""
    rates = agreement_rates(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), 1.0, 0.0)
    assert rates.tolist() == [2.0, 0.0]


def test_tiny_gradients_do_not_underflow():
    g = torch.randn(3, 50, generator=generator("tiny"))
    torch.testing.assert_close(agreement_rates(g * 1e-30, 1.0, 1.0), agreement_rates(g, 1.0, 1.0))
    assert agreement_rates(torch.zeros(3, 4), 1.0, 1.0).tolist() == [1.0] * 4


def test_over_a_loss_that_compares_domains_the_whole_gradient_stays():
    """CORAL's term vanishes on one domain; the step must have it, the agreement is of the domains' own."""
    batches = toy_batches(0, 3)
    ours, _, stack = after(Agreement(CORAL(weight=5.0), strength=3.0), batches)
    coral, start = after(CORAL(weight=5.0), batches)[0], theta(plain.ready(ERM(), 3, "sgd").net)
    expected = start + stack.rates * (coral - start)
    torch.testing.assert_close(ours.flat(), expected.flat(), rtol=0, atol=1e-12)
    erm = after(Agreement(strength=3.0), batches)[2]
    torch.testing.assert_close(stack.rates.flat(), erm.rates.flat(), rtol=0, atol=1e-9)


def test_under_sam_the_agreement_is_that_at_theta():
    batches = toy_batches(0, 3)
    under = after(SAM(Agreement(strength=3.0), rho=0.5), batches)[2].base
    alone = after(Agreement(strength=3.0), batches)[2]
    torch.testing.assert_close(under.means.flat(), alone.means.flat(), rtol=0, atol=1e-12)


def test_the_control_exchanges_rates_among_parameters_of_equal_gradients():
    batches = toy_batches(0, 3)
    ours, control = (after(Agreement(strength=3.0, control=c), batches)[2] for c in ("none", "matched"))
    name = "featurizer.layers.0.weight"  # 40 numbers: four groups of ten
    assert not torch.equal(ours.rates[name], control.rates[name])
    places = ours.means[name].mean(0).abs().reshape(-1).argsort(stable=True)
    for group in places.tensor_split(4):
        one, other = (stack.rates[name].reshape(-1)[group].sort()[0] for stack in (ours, control))
        assert torch.equal(one, other)
    again = after(Agreement(strength=3.0, control="matched"), batches)[2]
    assert torch.equal(control.rates.flat(), again.rates.flat())


def test_a_step_that_fails_leaves_means_and_rates_alone():
    class Fails(Agreement):
        def update(self, direction, batches):
            super().update(direction, batches)
            raise RuntimeError("disk full")

    stack = plain.ready(Fails(), 3)
    with pytest.raises(RuntimeError, match="disk full"):
        train_step(stack, toy_batches(0, 3))
    assert stack.means == ParamVector()
    assert stack.rates == ParamVector()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "strength=-1.0; wanted a finite number ≥ 0"),
        ({"beta": 1.0}, "beta=1.0; wanted a number from 0 to below 1"),
        ({"prior": float("nan")}, "prior=nan"),
        ({"every": 0}, "every=0; wanted a whole number of steps, at least 1"),
        ({"control": "shuffled"}, "control='shuffled'; wanted one of 'none', 'matched'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Agreement(**options)


@pytest.mark.parametrize("spec", ["DANN+Agreement", "Agreement+DANN"])
def test_a_step_that_asks_for_no_gradient_takes_none_in(spec):
    """DANN trains its adversary in every second step; the gradients of the step before are not saved."""
    check_algorithm(spec)


def test_a_layer_above_that_asks_for_one_domain_at_a_time_is_refused():
    with pytest.raises(ConfigError, match="nothing to compare"):
        plain.ready(parse("Agreement+Fish"), 3)
