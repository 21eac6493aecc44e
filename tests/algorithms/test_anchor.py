"""Anchor against its formula written out anew, with s and c measured sample by sample."""

import pytest
import torch

from dspreg.algorithms import ERM, Anchor, parse
from dspreg.errors import ConfigError
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import theta
from reference import plain
from reference.plain_sensitivity import BATCHES, sensitivities

WEIGHT = 0.3


def weights_by_hand(weights, domains, t, by):
    """w of the featurizer's weights, mean 1."""
    per_domain = [each[:2] for each in sensitivities(weights, domains, t)]
    found = []
    for each in zip(*per_domain, strict=True):
        mean = sum(each) / domains
        variance = sum((s - mean) ** 2 for s in each) / domains
        found.append(mean if by == "s" else variance.sqrt() / mean)
    mean = torch.cat([w.reshape(-1) for w in found]).mean()
    return [(w / mean).detach() for w in found]


@plain.problems
@plain.optimisers
@pytest.mark.parametrize("by", ["c", "s", "ones"])
def test_steps_are_those_of_a_plain_loop(domains, optimiser, by):
    kept = {}

    def step(weights, batches, by_hand, t):
        if t == 0:
            kept["start"] = [w.detach().clone() for w in weights]
            kept["w"] = [torch.ones_like(w) for w in weights[:2]]
        elif by != "ones":
            kept["w"] = weights_by_hand(weights, domains, t, by)
        loss = plain.pooled(weights, batches)
        away = [w - start for w, start in zip(weights, kept["start"], strict=True)]
        penalty = sum((w * a.square()).sum() for w, a in zip(kept["w"], away[:2], strict=True))
        by_hand.step(weights, plain.gradient(loss + WEIGHT * penalty, weights))

    algorithm = Anchor(weight=WEIGHT, by=by, refresh_steps=1, measure_batches=BATCHES)
    plain.assert_same_steps(algorithm, step, domains, optimiser)


def run(algorithm, steps=6):
    stack = plain.ready(algorithm, 3)
    start = theta(stack.net)
    for t in range(steps):
        log = train_step(stack, toy_batches(t, 3), record=True)
    return stack, theta(stack.net) - start, log


def test_a_strong_anchor_holds_all_but_the_classifier():
    free, held = run(ERM())[1], run(Anchor(weight=1e4, by="ones"))[1]
    assert held.select("featurizer.*").norm() < free.select("featurizer.*").norm() / 2
    assert held.select("classifier.*").norm() > free.select("classifier.*").norm() / 2


def test_without_weight_it_is_erm_bitwise():
    assert torch.equal(run(Anchor(weight=0.0))[1].flat(), run(ERM())[1].flat())


def test_the_record_has_the_distance_from_the_start():
    _, moved, log = run(Anchor(weight=0.1, by="ones"), steps=1)
    assert log["Anchor.distance"] == 0
    stack, moved, _ = run(Anchor(weight=0.1, by="ones"), steps=5)
    log = train_step(stack, toy_batches(5, 3), record=True)
    assert log["Anchor.distance"].item() == pytest.approx(float(moved.select("featurizer.*").norm()), rel=1e-9)


@pytest.mark.parametrize("control", ["shuffled", "matched"])
def test_controls_keep_the_values_of_every_tensor(control):
    options = {"weight": 0.1, "refresh_steps": 2}
    found = []
    for each in ("none", control):
        stack = plain.ready(Anchor(**options, control=each), 3)
        stack.stack.steps = 2
        found.append(stack.measure_weights())
    plain_w, permuted = found
    for name in plain_w:
        torch.testing.assert_close(plain_w[name].reshape(-1).sort()[0], permuted[name].reshape(-1).sort()[0])
    name = "featurizer.layers.0.weight"
    assert not torch.equal(plain_w[name], permuted[name])
    assert float(plain_w.flat().mean()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0; wanted a finite number ≥ 0"),
        ({"by": "fisher"}, "by='fisher'; wanted one of 'c', 's', 'ones'"),
        ({"control": "reversed"}, "control='reversed'; wanted one of 'none', 'matched', 'shuffled'"),
        ({"by": "ones", "control": "matched"}, "changes nothing with by='ones'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Anchor(**options)


def test_one_source_domain_is_refused_where_domains_are_compared():
    with pytest.raises(ConfigError, match="compares source domains and there is 1"):
        Anchor().setup(toy_task(1), lambda p: torch.optim.Adam(p))
    Anchor(by="ones").setup(toy_task(1), lambda p: torch.optim.Adam(p))


def test_a_spec_round_trips():
    text = "Anchor(weight=0.2, by='s', control='shuffled')"
    assert parse(text).options() == {"weight": 0.2, "by": "s", "control": "shuffled"}
