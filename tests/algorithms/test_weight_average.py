"""EMA and SWA against torch's own averages, by what they predict, save and leave alone."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dspreg.algorithms import EMA, SWA, Algorithm, DSPReg, Fish, parse
from dspreg.algorithms.registry import StackSpec
from dspreg.errors import ConfigError, Notice
from dspreg.networks.network import Network
from dspreg.testing import check_algorithm, ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from dspreg.training.model import load_tensors, tensors_of
from dspreg.vectors import ParamVector, average, theta

STEPS, START = 24, 7
REFRESHED = "DSPReg(refresh_steps=3, measure_batches=1)"
STACKS = ("{}", f"{{}}+{REFRESHED}", f"{REFRESHED}+{{}}", "CORAL+SAM+{}", "{}+Fish", "MTL+{}")


def average_of(stack):
    return next(layer for layer in stack.layers() if isinstance(layer, EMA | SWA))


@pytest.fixture(autouse=True)
def _no_word_on_penalties():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


@pytest.mark.parametrize("around", STACKS)
@pytest.mark.parametrize("kind", ["SWA", "EMA"])
def test_the_mean_and_the_prediction_are_those_of_torch(kind, around):
    """In float64, along a training; torch's AveragedModel holds a network of its own."""
    layer = f"SWA(start={START})" if kind == "SWA" else "EMA(decay=0.9)"
    stack = ready(parse(around.format(layer)))
    first = START if kind == "SWA" else 0
    theirs = AveragedModel(stack.net, multi_avg_fn=None if kind == "SWA" else get_ema_multi_avg_fn(0.9))
    for t in range(STEPS):
        train_step(stack, toy_batches(t))
        if t >= first:
            theirs.update_parameters(stack.net)
    ours = average_of(stack).mean
    named = dict(theirs.module.named_parameters())
    assert set(ours) == set(named)
    for name, t in ours.items():
        assert t.dtype == torch.float64
        torch.testing.assert_close(t, named[name].data, rtol=0, atol=1e-14)
    assert float((ours - theta(stack.net)).norm()) > 1e-3
    x = toy_batches(99)[0].x
    expected = copy.deepcopy(stack.eval())
    average_of(expected).mean = ParamVector()
    with torch.no_grad():
        for name, p in expected.net.named_parameters():
            p.copy_(named[name])
    torch.testing.assert_close(stack.predict(x), expected.predict(x), rtol=0, atol=1e-13)
    assert not torch.allclose(stack.predict(x), average_of(stack).base.predict(x), rtol=1e-4)


def test_by_the_sums_they_are_named_after():
    swa, ema, seen = ready(SWA(start=2)), ready(EMA(decay=0.8)), []
    for t in range(9):
        train_step(swa, toy_batches(t))
        train_step(ema, toy_batches(t))
        seen.append(theta(swa.net))
    torch.testing.assert_close(swa.mean.flat(), average(seen[2:]).flat(), rtol=1e-12, atol=0)
    shares = [0.8**8] + [0.2 * 0.8 ** (8 - t) for t in range(1, 9)]
    assert sum(shares) == pytest.approx(1)
    by_hand = sum((each.flat() * share for share, each in zip(shares, seen, strict=True)), torch.zeros(()))
    torch.testing.assert_close(ema.mean.flat(), by_hand, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layer", ["SWA(start=1)", "EMA(decay=0.5)"])
@pytest.mark.parametrize("other", ["ERM", "DSPReg(refresh_steps=2, measure_batches=1)", "Fish", "DANN(mlp_width=8)"])
def test_training_and_c_are_those_of_the_base_to_the_bit(layer, other):
    plain = ready(parse(other))
    averaged = [ready(parse(f"{other}+{layer}"))] + ([ready(parse(f"{layer}+{other}"))] if other != "ERM" else [])
    for t in range(6):
        for stack in (plain, *averaged):
            train_step(stack, toy_batches(t))
    for stack in averaged:
        assert torch.equal(theta(stack.net).flat(), theta(plain.net).flat())
        for one, two in zip(
            [each.c for each in stack.layers() if isinstance(each, DSPReg)],
            [each.c for each in plain.layers() if isinstance(each, DSPReg)],
            strict=True,
        ):
            assert one.flat().any()
            assert torch.equal(one.flat(), two.flat())


def test_several_updates_in_a_step_count_once():
    for stack in (ready(Fish(SWA(start=0))), ready(SWA(Fish(), start=0))):
        for t in range(3):
            train_step(stack, toy_batches(t))
        assert average_of(stack).count == 3


def test_before_its_start_swa_predicts_with_the_weights_there_are():
    stack, x = ready(SWA(start=3)), toy_batches(9)[0].x
    for t in range(3):
        train_step(stack, toy_batches(t))
        assert torch.equal(stack.eval().predict(x), stack.net(x))
        assert len(stack.mean) == 0  # and there is no copy yet
    train_step(stack, toy_batches(3))
    assert torch.equal(stack.eval().predict(x), stack.net(x))  # the mean of one
    train_step(stack, toy_batches(4))
    assert not torch.equal(stack.eval().predict(x), stack.net(x))


class Fails(Algorithm):
    """Moves the weights and fails, when it is asked to."""

    failing = False

    def update(self, direction, batches):
        log = self.base.update(direction, batches)
        if self.failing:
            raise ZeroDivisionError
        return log


@pytest.mark.parametrize("layer", [SWA(Fails(), start=0), EMA(Fails(), decay=0.5)])
def test_a_step_that_fails_is_not_averaged(layer):
    stack = ready(layer)
    train_step(stack, toy_batches(0))
    before, count = stack.mean.flat().clone(), stack.count
    stack.base.failing = True
    with pytest.raises(ZeroDivisionError):
        train_step(stack, toy_batches(1))
    assert torch.equal(stack.mean.flat(), before)
    assert stack.count == count


def test_the_average_is_updated_where_it_lies():
    stack = ready(EMA(decay=0.5))
    train_step(stack, toy_batches(0))
    places = {name: t.data_ptr() for name, t in stack.mean.items()}
    assert not set(places.values()) & {p.data_ptr() for p in stack.net.parameters()}
    for t in range(1, 4):
        train_step(stack, toy_batches(t))
        stack.eval().predict(toy_batches(9)[0].x)
    assert {name: t.data_ptr() for name, t in stack.mean.items()} == places


def test_the_average_goes_where_the_network_goes():
    stack = ready(SWA(start=0))
    train_step(stack, toy_batches(0))
    stack.to(torch.float32)
    assert {t.dtype for t in stack.mean.values()} == {torch.float32}
    stack.to("meta")
    assert {t.device.type for t in stack.mean.values()} == {"meta"}


class WithNorm(nn.Module):
    """A batch norm that is not frozen."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.width = self.layers(torch.zeros(2, *IMAGE)).shape[1]

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("layer", [SWA(start=1), EMA(decay=0.5)])
def test_running_statistics_are_those_of_the_last_step_and_stay_so(layer):
    from dataclasses import replace

    stack = ready(layer, replace(toy_task(inputs=IMAGE), backbone=lambda: WithNorm().double()))
    theirs = AveragedModel(stack.net, multi_avg_fn=get_ema_multi_avg_fn(0.5) if isinstance(layer, EMA) else None)
    for t in range(5):
        train_step(stack.train(), toy_batches(t, inputs=IMAGE))
        if t >= (isinstance(layer, SWA)):
            theirs.update_parameters(stack.net)
    before = {name: b.clone() for name, b in stack.net.named_buffers()}
    assert float(before["featurizer.layers.1.running_mean"].abs().max()) > 0
    x = toy_batches(9, inputs=IMAGE)[0].x
    torch.testing.assert_close(stack.eval().predict(x), theirs.eval()(x), rtol=0, atol=1e-12)
    for name, b in stack.net.named_buffers():
        assert torch.equal(b, before[name])


@pytest.mark.parametrize("around", STACKS)
@pytest.mark.parametrize("layer", ["SWA(start=1)", "EMA(decay=0.5)"])
def test_a_loaded_network_is_the_one_that_predicts(layer, around):
    stack, fresh = ready(parse(around.format(layer))), ready(parse(around.format(layer)))
    for t in range(5):
        train_step(stack, toy_batches(t))
    load_tensors(fresh, tensors_of(stack), "here")
    x = toy_batches(9)[0].x
    assert torch.equal(fresh.eval().predict(x), stack.eval().predict(x))
    assert torch.equal(theta(fresh.net).flat(), average_of(stack).mean.flat())
    batch = toy_batches(9)[0]
    if "MTL" not in around:  # whose prediction takes the batch as a domain
        assert torch.equal(fresh.measured(batch)(x), fresh.predict(x))
        assert torch.equal(stack.measured(batch)(x), stack.net(x))
    assert isinstance(fresh.net, Network)


@pytest.mark.parametrize("layer", ["SWA", "EMA"])
@pytest.mark.parametrize("other", ["ARM(width=4)", "MTL"])
def test_what_reads_the_network_to_predict_goes_below(layer, other):
    name = other.partition("(")[0]
    with pytest.raises(
        ConfigError, match=rf"{name} has its own predict.*Put it the other way round: '{name}\+{layer}'"
    ):
        ready(parse(f"{layer}+{other}"), toy_task(inputs=IMAGE))
    stack = ready(parse(f"{other}+{layer}"), toy_task(inputs=IMAGE))
    part = "context.0.weight" if name == "ARM" else "marginal.weight"
    for t in range(3):
        train_step(stack, toy_batches(t, inputs=IMAGE))
    if layer == "EMA":
        assert part in stack.mean


def test_one_average_in_a_stack():
    for spec in ("SWA+EMA", "EMA+SWA", "SWA+SWA", "EMA+CORAL+EMA"):
        with pytest.raises(ConfigError, match=r"would not be at the weights that .* Leave one of them out"):
            ready(parse(spec))


@pytest.mark.parametrize("spec", [around.format(a) for around in STACKS for a in ("SWA(start=1)", "EMA(decay=0.5)")])
def test_they_keep_the_laws(spec):
    assert check_algorithm(spec) is None


@pytest.mark.parametrize("wrong", ["SWA(start=-1)", "EMA(decay=1.0)", "EMA(decay=-0.1)"])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="wanted a number"):
        parse(wrong)


def test_in_short_runs_they_look_back_for_the_same_share():
    def resolved(spec, steps):
        return str(StackSpec.parse(spec).resolve(steps=steps)[0])

    assert resolved("SWA", 5_001) == "SWA"
    assert resolved("SWA", 300) == "SWA(start=150)"
    assert resolved("SWA(start=20)", 300) == "SWA(start=20)"
    assert resolved("EMA", 5_001) == resolved("EMA", 15_001) == "EMA"
    assert resolved("EMA", 500) == "EMA(decay=0.989998)"  # looks back 100 steps
    assert resolved("EMA", 3) == "EMA(decay=0.0)"
    assert resolved("EMA(decay=0.999)", 500) == "EMA(decay=0.999)"
    assert StackSpec.parse("EMA").resolve(steps=500)[1] == ["EMA: decay=0.989998 instead of 0.999"]
