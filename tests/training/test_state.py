"""A training between two steps: what is not a number is named, and means are means."""

import math
from types import SimpleNamespace

import pytest
import torch

from dspreg.algorithms import parse
from dspreg.batches import Batch
from dspreg.runs.folder import RunFolder
from dspreg.testing import ready, toy_batches
from dspreg.training import loop, train_step
from dspreg.training.evaluate import Tally
from dspreg.training.serialization import pack
from dspreg.training.state import Selected, State, first_bad


@pytest.fixture
def stack():
    return ready(parse("GroupDRO+DSPReg(refresh_steps=2)"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(4))
def test_a_bad_parameter_is_named(stack, value, which):
    name, parameter = list(stack.net.named_parameters())[which]
    with torch.no_grad():
        parameter.view(-1)[-1] = value
    assert first_bad(stack, toy_batches(0), {"loss": 1.0}) == f"the parameter {name}"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_buffer_is_named_though_all_parameters_are_sound(stack, value):
    stack.net.featurizer.register_buffer("running_mean", torch.zeros(3))
    assert first_bad(stack, toy_batches(0), {"loss": 1.0}) is None
    stack.net.featurizer.running_mean[1] = value
    assert first_bad(stack, toy_batches(0), {"loss": 1.0}) == "the buffer featurizer.running_mean"


def test_the_cause_is_named_before_its_effects(stack):
    batches = toy_batches(0)
    x = batches[1].x.clone()
    x[2, 3] = math.inf
    batches[1] = Batch(x, batches[1].y, 1)
    train_step(stack, batches)
    assert not all(bool(p.isfinite().all()) for p in stack.parameters())
    assert first_bad(stack, batches, {"loss": math.nan}) == "the images of 'domain 1'"


def test_a_bad_logged_value_is_named(stack):
    log = {"loss": 1.0, "DSPReg.R": math.inf, "DSPReg.L": math.nan}
    assert first_bad(stack, toy_batches(0), log) == "the logged DSPReg.R"


def test_sound_ones_are_not_named(stack):
    assert first_bad(stack, toy_batches(0), {"loss": 1.0, "zero": 0.0, "large": 1e308}) is None
    assert first_bad(stack, toy_batches(0), {}) is None
    with torch.no_grad():
        for p in stack.net.parameters():
            p.fill_(1e308)  # each a number, though their sum is not
    assert first_bad(stack, toy_batches(0), {"loss": 1.0}) is None


def test_means_are_those_of_a_plain_loop_and_windows_do_not_overlap(tmp_path, stack):
    state = State(stack, RunFolder(tmp_path))
    random = torch.Generator().manual_seed(0)
    for window in (1, 7, 3):
        logs = []
        for n in range(window):
            log = {"loss": float(torch.rand(1, generator=random)), "DSPReg.refresh_seconds": 0.5 * n}
            if n % 2:
                log["sometimes"] = float(n)
            state.took(log, seconds=0.125)
            logs.append(log)
        means, seconds = state.means()
        expected = {"loss": math.fsum(log["loss"] for log in logs) / window}
        odd = [log["sometimes"] for log in logs if "sometimes" in log]
        if odd:
            expected["sometimes"] = sum(odd) / len(odd)
        assert means == pytest.approx(expected, rel=1e-14)
        assert seconds == pytest.approx({"step_seconds": 0.125, "DSPReg.refresh_seconds": 0.25 * (window - 1)})
    assert state.means() == ({}, {})


def test_a_window_survives_a_checkpoint(tmp_path, stack):
    folder = RunFolder(tmp_path)
    state = State(stack, folder, recorded=3, selected=Selected(3, 0.5, {"w": torch.ones(2)}))
    state.took({"loss": 0.1}, 0.2)
    again = State(ready(parse("GroupDRO+DSPReg(refresh_steps=2)")), folder)
    again.unpack(state.pack())
    assert pack(again.pack()) == pack(state.pack())
    for each in (state, again):
        each.took({"loss": 0.7}, 0.4)
    assert again.means() == state.means()
    assert (again.recorded, again.selected.step, again.selected.validation) == (3, 3, 0.5)


NO_WEIGHTS = {"source": "none", "tag": "none", "sha256": None}


def test_of_equal_evaluations_the_first_is_selected(tmp_path, monkeypatch, stack):
    """In the trainer's own `evaluate`, with accuracies by hand."""
    scores = iter([(5, 7), (7, 5), (6, 7), (7, 6), (1, 1), (6, 7)])  # means 6, 6, 6.5, 6.5, 1, 6.5 of 10
    monkeypatch.setattr(loop, "tallies", lambda *_, **__: [Tally(c, 10) for c in next(scores)])
    experiment = SimpleNamespace(
        settings=SimpleNamespace(
            steps=99, targets=(), evaluation_batch=4, holdout=0.2, select_by="accuracy", patience=0
        ),
        data=SimpleNamespace(kind="classes", num_classes=3),
        execution=SimpleNamespace(keep="best", device="cpu"),
        evaluation_parts=lambda last: [("a", "out", None), ("b", "out", None)],
        sources=("a", "b"), key=("k",), workers=0, epoch=2, weights=NO_WEIGHTS,
    )  # fmt: skip
    state = State(stack, RunFolder(tmp_path))
    chosen = []
    for t in range(6):
        train_step(stack, toy_batches(t))
        state.took({"loss": 1.0}, 0.1)
        record = loop.evaluate(experiment, state, lambda: None, lambda: None)
        assert record["step"] == state.recorded == t
        chosen.append(state.selected.step)
    assert chosen == [0, 0, 2, 2, 2, 2]
    assert state.selected.validation == pytest.approx(0.65)
