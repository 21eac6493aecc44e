"""LP-FT against two textbook optimisers, one after the other."""

import pytest
import torch

from dspreg.algorithms import LPFT
from dspreg.algorithms.registry import StackSpec
from dspreg.errors import ConfigError
from dspreg.testing import check_algorithm, toy_batches
from dspreg.training import train_step
from reference import plain

PROBE, PROBE_LR, STEPS = 3, 0.2, 7


@plain.problems
@plain.optimisers
def test_steps_are_those_of_two_optimisers_one_after_the_other(domains, optimiser):
    _, make, _ = plain.OPTIMISERS[optimiser]
    stack = plain.ready(LPFT(probe_steps=PROBE, probe_lr=PROBE_LR), domains, optimiser)
    weights, start = plain.weights_of(stack), plain.weights_of(stack)
    probe, fine = make(lr=PROBE_LR), make()
    for t in range(STEPS):
        batches = toy_batches(t, domains, plain.SIZES)
        train_step(stack, batches)
        grads = plain.gradient(plain.pooled(weights, batches), weights)
        if t < PROBE:
            probe.step(weights[2:], grads[2:])
            assert all(torch.equal(a, b) for a, b in zip(plain.weights_of(stack)[:2], start[:2], strict=True))
        else:
            fine.step(weights, grads)
        plain.compare("LPFT", optimiser, plain.weights_of(stack), weights)
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(plain.weights_of(stack), start, strict=True))


def test_without_a_probe_it_is_erm():
    ours, erm = (plain.ready(LPFT(probe_steps=n), 3, "adam") for n in (0, 10**6))
    for t in range(3):
        train_step(ours, toy_batches(t))
        train_step(erm, toy_batches(t))
    assert not torch.equal(ours.net.featurizer.layers[0].weight, erm.net.featurizer.layers[0].weight)
    weights, optimiser = plain.weights_of(plain.ready(LPFT(), 3, "adam")), plain.OPTIMISERS["adam"][1]()
    for t in range(3):
        optimiser.step(weights, plain.gradient(plain.pooled(weights, toy_batches(t)), weights))
    for a, b in zip(plain.weights_of(ours), weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "spec",
    ["LPFT(probe_steps=1)", "LPFT(probe_steps=1)+DSPReg(measure_batches=1)", "Fish+LPFT(probe_steps=1)",
     "LPFT(probe_steps=1)+EMA(decay=0.5)"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_it_keeps_the_laws(spec):
    assert check_algorithm(spec) is None


def test_a_short_run_has_a_short_probe():
    spec, said = StackSpec.parse("LPFT").resolve(steps=501)
    assert str(spec) == "LPFT(probe_steps=100)"
    assert said == ["LPFT: probe_steps=100 instead of 1000"]


@pytest.mark.parametrize("wrong", ["LPFT(probe_steps=-1)", "LPFT(probe_lr=0.0)"])
def test_options_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match="LPFT: "):
        StackSpec.parse(wrong)
