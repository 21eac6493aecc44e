"""On a GPU the log stays there until a record or a checkpoint needs it. What is recorded is the same to the bit."""

import pytest
import torch
from torch import Tensor

from dspreg.algorithms import Algorithm
from dspreg.devices import read_numbers
from dspreg.errors import Diverged
from dspreg.runs.status import FAILURE, read_failure
from dspreg.training import loop, state
from dspreg.training.callbacks import Callback
from dspreg.training.loop import train
from dspreg.training.state import StepLog
from helpers import tiny
from helpers.accelerators import Waits

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")


@pytest.fixture
def images(tmp_path):
    return tiny.make_images(tmp_path / "images")


@pytest.fixture
def deferred(monkeypatch):
    """As on a GPU; returns how many scalars each reading had."""
    readings = []

    def read(scalars):
        readings.append(len(scalars))
        return read_numbers(scalars)

    monkeypatch.setattr(loop, "reads_every_step", lambda device: False)
    monkeypatch.setattr(state, "read_numbers", read)
    return readings


def test_what_is_read_later_is_the_same(images, tmp_path, monkeypatch):
    train(tiny.settings(images), tiny.execution(), tmp_path / "at once")
    monkeypatch.setattr(loop, "reads_every_step", lambda device: False)
    train(tiny.settings(images), tiny.execution(), tmp_path / "later")
    assert tiny.ending(tmp_path / "later") == tiny.ending(tmp_path / "at once")


def test_the_log_is_read_once_per_record(images, tmp_path, deferred):
    settings = tiny.settings(images, algorithm="CORAL", steps=14, evaluate_every=4)
    train(settings, tiny.execution(save_every=100), tmp_path / "run")
    # after the steps 0, 4, 8, 12 and 13, of 1, 4, 4, 4 and 1 steps: loss, the gap of CORAL and the checksum
    assert [n for n in deferred if n] == [3 * steps for steps in (1, 4, 4, 4, 1)]


def test_a_checkpoint_reads_it_too_and_a_run_goes_on_in_the_same_bits(images, tmp_path, deferred):
    train(tiny.settings(images), tiny.execution(), tmp_path / "whole")
    with pytest.raises(loop.Preempted):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(20))
    train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")


class Explodes(Algorithm):
    """From step 6 on its loss is not a number."""

    def loss(self, out):
        return self.base.loss(out) * (float("nan") if self.t >= 6 else 1.0)


@pytest.mark.parametrize("moment", [None, 40])
def test_the_step_that_diverged_is_named_though_it_is_noticed_later(images, tmp_path, deferred, moment):
    spec = f"{Explodes.__module__}.Explodes"
    settings = tiny.settings(images, algorithm=spec, steps=14, evaluate_every=10)
    pause = tiny.stop_at(moment) if moment else lambda: None  # stopped in between, it is noticed by the checkpoint
    with pytest.raises(Diverged, match="step 6: not finite: the logged loss") as failure:
        train(settings, tiny.execution(save_every=100), tmp_path / "run", pause=pause)
    assert failure.value.step == 6
    assert read_failure(tmp_path / "run" / FAILURE).record["step"] == 6


class Looks(Callback):
    """Asks for the loss of every step."""

    def __init__(self):
        self.losses = {}

    def on_step_end(self, step, log):
        self.losses[step] = (log["loss"], dict(log))


def test_a_callback_gets_numbers_whenever_it_asks(images, tmp_path, deferred):
    looks = Looks()
    train(tiny.settings(images, algorithm="CORAL", steps=6), tiny.execution(), tmp_path / "run", callbacks=[looks])
    assert list(looks.losses) == list(range(6))
    for loss, log in looks.losses.values():
        assert isinstance(loss, float)
        assert set(log) == {"loss", "CORAL.gap"}
        assert log["loss"] == loss > 0


def test_a_log_is_a_mapping_that_reads_once():
    scalars = {"loss": torch.tensor(0.1), "wide": torch.tensor(0.1, dtype=torch.float64), "count": torch.tensor(3)}
    logs = [StepLog(t, scalars, torch.tensor(1.5)) for t in range(3)]
    mode = Waits(*scalars.values())
    with mode:
        assert (len(logs[0]), list(logs[0]), "loss" in logs[0]) == (3, ["loss", "wide", "count"], True)
    assert mode.found == []
    StepLog.read(logs)
    for log in logs:
        assert dict(log) == {"loss": float(torch.tensor(0.1)), "wide": 0.1, "count": 3.0}
        assert log.checksum == 1.5
        with pytest.raises(KeyError):
            log["gone"]


def test_numbers_are_read_as_they_are():
    values = [torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), torch.tensor(True), torch.tensor(2**40)]
    values += [torch.tensor(float("inf")), torch.tensor(0.3, dtype=torch.bfloat16)]
    assert read_numbers(values) == [float(t) for t in values]
    assert read_numbers([]) == []
    assert all(isinstance(each, float) and not isinstance(each, Tensor) for each in read_numbers(values))
