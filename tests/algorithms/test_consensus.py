"""Consensus against its formula written out anew, and what it is for."""

import pytest
import torch

from dspreg.algorithms import CORAL, ERM, SWA, Algorithm, Compatibility, Consensus, parse
from dspreg.algorithms.compatibility import require_compatible
from dspreg.errors import ConfigError
from dspreg.testing import toy_batches
from dspreg.training import train_step
from dspreg.vectors import ParamVector, theta
from reference import plain

STRENGTH, PRIOR, STEPS = 2.0, 0.5, 4


def rates_by_hand(credit):
    """One unit at a time; credit (D, units)."""
    domains, count = credit.shape
    means = [sum(credit[:, u]) / domains for u in range(count)]
    variances = [sum((credit[d, u] - means[u]) ** 2 for d in range(domains)) / (domains - 1) for u in range(count)]
    typical = sum(variances) / count
    found = []
    for m, v in zip(means, variances, strict=True):
        v = (v + PRIOR * typical) / (1 + PRIOR)
        found.append(m**2 / (m**2 + STRENGTH * v / domains) if m > 0 else torch.zeros_like(m))
    return torch.stack(found)


@plain.problems
def test_the_prediction_is_at_the_point_of_the_formula(domains):
    stack = plain.ready(Consensus(strength=STRENGTH, prior=PRIOR), domains)
    weights, by_hand = plain.weights_of(stack), plain.Adam()
    start = [w.detach().clone() for w in weights]
    before = [w.detach().clone() for w in weights]
    credit = [torch.zeros(domains, len(w), dtype=torch.float64) for w in weights]
    for t in range(STEPS):
        batches = toy_batches(t, domains, plain.SIZES)
        for d, b in enumerate(batches):
            g = plain.gradient(plain.cross_entropy(weights, b.x, b.y), weights)
            for i in range(len(weights)):
                for u in range(len(weights[i])):
                    credit[i][d, u] -= (g[i][u] * (weights[i][u] - before[i][u])).sum().detach()
        before = [w.detach().clone() for w in weights]
        by_hand.step(weights, plain.gradient(plain.pooled(weights, batches), weights))
        train_step(stack, batches)
    plain.compare("Consensus", "adam", plain.weights_of(stack), weights)

    point = []
    for i, (w, at) in enumerate(zip(weights, start, strict=True)):
        if i < 2:  # the featurizer; the classifier keeps its move
            r = rates_by_hand(credit[i]).view(-1, *[1] * (w.ndim - 1))
            assert 0 < float(r.mean()) < 1
            w = at + r * (w - at)
        point.append(w)
    x = toy_batches(9, domains)[0].x
    torch.testing.assert_close(stack.eval().predict(x), plain.logits(point, x), rtol=0, atol=1e-10)


def run(algorithm, steps=STEPS, lr=None):
    stack = plain.ready(algorithm, 3)
    if lr is not None:
        stack.stack.optimizer.param_groups[0]["lr"] = lr
    for t in range(steps):
        train_step(stack, toy_batches(t % 2, 3))
    return stack


def test_training_is_that_of_the_base():
    ours, base = run(Consensus()), run(ERM())
    torch.testing.assert_close(theta(ours.net).flat(), theta(base.net).flat(), rtol=0, atol=1e-12)
    ours, base = run(Consensus(CORAL(weight=3.0))), run(CORAL(weight=3.0))
    assert torch.equal(theta(ours.net).flat(), theta(base.net).flat())


def test_credit_adds_up_to_the_fall_of_each_domains_loss():
    """Along a fine path, on the same batches at every step, Σ_u ω_u^(d) = L_d(θ⁰) − L_d(θ_T)."""
    stack = plain.ready(Consensus(exclude=None), 3, "sgd")
    stack.stack.optimizer.param_groups[0]["lr"] = 1e-3
    batches, weights = toy_batches(0, 3), plain.weights_of(stack)
    for _ in range(400):
        train_step(stack, batches)
        if stack.t < 400:
            last = plain.weights_of(stack)  # the last move has no credit yet
    for d, b in enumerate(batches):
        fall = (plain.cross_entropy(weights, b.x, b.y) - plain.cross_entropy(last, b.x, b.y)).item()
        credit = sum(float(c[d].sum()) for c in stack.credit.values())
        assert abs(fall) > 0.01
        assert credit == pytest.approx(fall, rel=0.02)


class Tug(Algorithm):
    """Instead of a loss: the first hidden bias serves one domain at the expense of another, the second all."""

    compatibility = Compatibility(replaces=frozenset({"loss"}))

    def loss(self, out):
        a, b = self.net.featurizer.layers[0].bias[:2]
        pulls = torch.tensor([(1.0, -0.9, 0.5)[d] for d in out.domains], dtype=a.dtype)
        return out.weights.dot(pulls * a + b)


def test_a_unit_that_served_one_domain_at_the_expense_of_another_returns():
    stack = run(Consensus(Tug(), strength=3.0, prior=0.0))
    r = stack.rates["featurizer.layers.0.bias"]
    assert r[1] > 0.99
    assert r[0] < 0.1


def test_with_swa_above_the_mean_is_moved_back():
    stack = run(SWA(Consensus(), start=1), steps=6)
    x, consensus = toy_batches(9, 3)[0].x, stack.base
    expected = consensus.start + consensus.rates * (stack.mean.select("featurizer.*") - consensus.start)
    by_hand = plain.ready(ERM(), 3)
    state = {**stack.net.state_dict(), **stack.mean, **expected}
    by_hand.net.load_state_dict(state)
    torch.testing.assert_close(stack.eval().predict(x), by_hand.eval().predict(x), rtol=0, atol=1e-12)


def test_a_loaded_network_stands_where_it_predicts():
    stack = run(Consensus())
    x = toy_batches(9, 3)[0].x
    predicted = stack.eval().predict(x)
    assert not torch.allclose(stack.net(x), predicted)
    stack.on_load()
    torch.testing.assert_close(stack.net(x), predicted, rtol=0, atol=1e-12)
    assert torch.equal(stack.predict(x), stack.net(x))


def test_a_layer_with_a_prediction_of_its_own_goes_below_unless_it_averages():
    def check(spec):
        require_compatible(tuple(parse(spec).layers()))

    with pytest.raises(ConfigError, match=r"ARM has its own predict.*'ARM\+Consensus'"):
        check("Consensus+ARM")
    with pytest.raises(ConfigError, match=r"Consensus has its own predict.*'Consensus\+SWA'"):
        check("SWA+Consensus")
    for spec in ("ARM+Consensus", "Consensus+EMA", "Consensus+SWA", "Consensus+Consensus"):
        check(spec)


def test_controls_keep_the_rates_of_each_tensor_or_their_mean():
    ours, matched, mean = (run(Consensus(control=c), steps=6) for c in ("none", "matched", "mean"))
    moved = 0
    for name, r in ours.rates.items():
        units = r.reshape(len(r), -1)[:, 0]
        assert torch.equal(matched.rates[name].reshape(len(r), -1)[:, 0].sort()[0], units.sort()[0])
        assert torch.allclose(mean.rates[name], units.mean().expand_as(r))
        moved += not torch.equal(r, matched.rates[name])
    assert moved


def test_one_domain_alone_gives_no_credit_and_the_prediction_of_the_base():
    stack = plain.ready(Consensus(), 3)
    train_step(stack, toy_batches(0, 3)[:1])
    assert all(torch.equal(r, torch.ones_like(r)) for r in stack.rates.values())


def test_the_classifier_keeps_its_move_unless_told_otherwise():
    assert set(run(Consensus()).rates) == {"featurizer.layers.0.weight", "featurizer.layers.0.bias"}
    assert len(run(Consensus(exclude=None)).rates) == 4
    assert isinstance(run(Consensus()).credit, ParamVector)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "strength=-1.0; wanted a finite number ≥ 0"),
        ({"prior": float("inf")}, "prior=inf"),
        ({"control": "shuffled"}, "control='shuffled'; wanted one of 'none', 'matched', 'mean'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Consensus(**options)
