"""Stacks, states and options with which methods once went wrong without a word."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import dspreg
from dspreg.algorithms import ERM, IRM, MTL, Algorithm, DSPReg, Fish, SagNet
from dspreg.algorithms.registry import resolve_spec
from dspreg.errors import ConfigError
from dspreg.testing import check_algorithm, ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from dspreg.vectors import theta
from reference import plain

CLASSES = 1 + max(int(batch.y.max()) for t in range(9) for batch in toy_batches(t, 3, plain.SIZES))


def stepped(stack, steps):
    for t in steps:
        train_step(stack, toy_batches(t, 3, plain.SIZES))
    return theta(stack.net)


def test_a_warm_up_ends_as_often_as_a_layer_is_set_up():
    layer = IRM(warmup=2)
    first = stepped(plain.ready(layer, 3), range(4))
    again = stepped(plain.ready(layer, 3), range(4))
    assert (first - again).norm() == 0


def test_steps_leave_the_state_they_were_loaded_from():
    stack = plain.ready(DSPReg(weight=0.05, engine="momentum"), 3)
    stepped(stack, range(3))
    saved = copy.deepcopy(stack.state_dict())
    before = copy.deepcopy(saved)
    other = plain.ready(DSPReg(weight=0.05, engine="momentum"), 3)
    other.load_state_dict(saved)
    stepped(other, range(3, 6))
    torch.testing.assert_close(saved, before, rtol=0, atol=0)


def test_a_pattern_that_matches_nothing_is_refused_at_setup():
    with pytest.raises(ConfigError, match=r"'head\.\*' matches no parameter"):
        plain.ready(DSPReg(exclude="head.*"), 3)


def test_the_objective_is_no_half_precision():
    stack = plain.ready(ERM(), 3)
    batches = toy_batches(0, 3, plain.SIZES)
    out = stack(batches)
    out = out.replace(logits=out.logits.float(), weights=out.weights.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert stack.loss(out).dtype == torch.float32
    assert stack.loss(out).item() == pytest.approx((out.weights * out.risks()).sum().item(), rel=1e-6)


@pytest.mark.parametrize("method", ["CORAL", "MMD"])
def test_distances_of_features_are_no_half_precision(method):
    stack = plain.ready(dspreg.parse(method), 3)
    out = stack(toy_batches(0, 3, plain.SIZES))
    half = out.replace(features=out.features.bfloat16(), logits=out.logits.float(), weights=out.weights.float())
    full = half.replace(features=half.features.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert stack.loss(half).item() == stack.loss(full).item()


def test_a_given_start_keeps_the_published_end():
    assert resolve_spec("GGA(start=150)", steps=200) == ("GGA(start=150, end=200)", [])
    with pytest.raises(ConfigError, match="give both"):
        resolve_spec("GGA(end=50)", steps=200)


@pytest.mark.parametrize(
    "spec",
    ["Fish(meta_lr=0)", "CORAL(weight=-1)", "MMD(weight=-1)", "MLDG(beta=-1)", "GSAM(alpha=-5)", "SAGM(alpha=-5)",
     "MIRO(places=5)", "MIRO(places=[1])"],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(spec):
    with pytest.raises(ConfigError, match="wanted"):
        dspreg.parse(spec)


class Calibrated(Algorithm):
    def predict(self, x):
        return self.base.predict(x) / 10


def test_a_prediction_that_would_be_lost_is_refused():
    with pytest.raises(ConfigError, match="MTL has its own predict and would undo that of Calibrated"):
        plain.ready(MTL(Calibrated()), 3)


class Drifting(ERM):
    """Not the same function twice in a step, if asked for."""

    def __init__(self, *, drift: float = 0.0):
        super().__init__()
        self.drift, self.times = drift, 0

    def loss(self, out):
        self.times += 1
        return super().loss(out) * (1 + self.drift * self.times)


def test_the_laws_look_at_a_bottom_with_its_options():
    with pytest.raises(AssertionError):
        check_algorithm(Drifting, drift=0.3)


def test_batch_norm_takes_a_batch_once_however_it_is_asked_for():
    class Normed(nn.Module):
        width = 5

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).double()

        def forward(self, x):
            return self.layers(x)

    task = dspreg.Task(CLASSES, ("a", "b", "c"), steps_per_epoch=4, backbone=Normed)
    for stack, times in ((SagNet(), 1), (Fish(), 3), (SagNet(Fish()), 3), (Fish(SagNet()), 3)):
        stack.setup(task, lambda params: torch.optim.SGD(params, lr=0.1))
        stack.double()
        train_step(stack, toy_batches(0, 3, plain.SIZES))
        assert int(stack.net.featurizer.layers[1].num_batches_tracked) == times, stack


@pytest.mark.parametrize("spec", ["SagNet", "GMDG(places='0')", "GGA", "DANN(grad_penalty=1.0)"])
def test_a_frozen_featurizer_is_refused_by_those_who_move_it(spec):
    class Frozen(nn.Sequential):
        width = 5
        stages = ("0",)

        def __init__(self):
            super().__init__(nn.Linear(5, 5), nn.Tanh())
            self.requires_grad_(False)

    task = dspreg.Task(CLASSES, ("a", "b", "c"), steps_per_epoch=4, backbone=Frozen)
    adam = torch.optim.Adam
    with pytest.raises(ConfigError, match="trains the featurizer, and all of it is frozen"):
        dspreg.parse(spec).setup(task, adam)
    dspreg.parse("DANN+DSPReg(coefficients='ones')").setup(task, adam)


class Signal(nn.Module):
    """Neither a Conv2d nor a Linear layer."""

    width = 4

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv1d(1, 4, 3)

    def forward(self, x):
        return self.filters(x[:, None]).mean(2)


@pytest.mark.parametrize("method", ["MIRO", "GMDG", "MIRO(places=['filters'])"])
def test_a_network_whose_inputs_are_not_known_is_refused_with_a_remedy(method):
    task = replace(toy_task(), backbone=Signal)
    with pytest.raises(
        ConfigError, match=r"Signal has no nn\.Conv2d or nn\.Linear.*; take a network with one, or leave"
    ):
        dspreg.parse(method).setup(task, torch.optim.Adam)
    assert ready(dspreg.parse("CORAL"), task).t == 0  # the network is one that others train


def test_two_that_mix_styles_both_stop_when_predicting():
    stack = ready(dspreg.parse("MixStyle(p=1.0)+MixStyle(p=1.0)"), toy_task(inputs=IMAGE, dropout=0.0)).eval()
    x = toy_batches(0, inputs=IMAGE)[0].x
    assert torch.equal(stack.predict(x), stack.predict(x))
    stack.train()
    assert not torch.equal(stack.net(x), stack.net(x))
