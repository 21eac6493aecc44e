"""The processes that read for a training: started once, for its steps, its evaluations and its refreshes."""

import multiprocessing
import os
import signal

import pytest

from dspreg.cli.train import stopping
from dspreg.data import loader
from dspreg.errors import Preempted, ResourceError
from dspreg.training import train
from dspreg.training.callbacks import Callback
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def alone(images, tmp_path_factory):
    """How a run ends that reads in its own process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(tiny.settings(images), tiny.execution(profile="always"), out)
    return tiny.ending(out)


@pytest.fixture
def forks(monkeypatch):
    """The processes that this one starts."""
    started, fork = [], os.fork

    def counting():
        child = fork()
        if child:
            started.append(child)
        return child

    monkeypatch.setattr(os, "fork", counting)
    return started


class Watch(Callback):
    """How many processes there were after each step, and after each evaluation."""

    def __init__(self, forks):
        self.forks, self.steps, self.evaluations = forks, [], []

    def on_step_end(self, step, log):
        self.steps.append(len(self.forks))

    def on_evaluation(self, record):
        self.evaluations.append(len(self.forks))


@pytest.mark.parametrize("profile", ["always", "never"])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_no_process_is_started_after_the_first_step(images, alone, tmp_path, forks, workers, profile):
    """With five evaluations, two refreshes, and c measured before and after; and the bits are those of one process."""
    watch = Watch(forks)
    how = tiny.execution(profile=profile, workers=workers)
    train(tiny.settings(images), how, tmp_path / "run", callbacks=[watch])
    assert watch.steps == [workers] * 14
    assert watch.evaluations == [workers] * 5
    assert len(forks) == workers
    assert multiprocessing.active_children() == []
    ending = tiny.ending(tmp_path / "run")
    assert ending["result"]["refreshes"] == 2
    if profile == "always":
        assert ending == alone


def test_a_run_has_at_most_six_processes_unless_more_are_asked_for(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert 1 + loader.reader_processes(None, small=False) <= 6
    assert loader.reader_processes(9, small=False) == 9


class AtEvaluation(Callback):
    """Does something after the first batch of the second evaluation."""

    def __init__(self, act):
        self.act, self.left, self.evaluating = act, 2, False

    def on_phase(self, description):
        self.evaluating = description == "evaluating"
        self.left -= self.evaluating

    def on_progress(self):
        if self.evaluating and self.left == 0:
            self.left = -1
            self.act()


def kill_readers():
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_reader_that_is_killed_in_an_evaluation_is_named(images, alone, tmp_path):
    settings, how = tiny.settings(images, evaluate="all"), tiny.execution(profile="always", workers=1)
    with pytest.raises(ResourceError, match=r"reads images died \(process \d+, SIGKILL\)") as told:
        train(settings, how, tmp_path / "run", callbacks=[AtEvaluation(kill_readers)])
    assert told.value.exit_code == 6
    assert multiprocessing.active_children() == []
    train(settings, how, tmp_path / "run")
    train(settings, tiny.execution(profile="always"), tmp_path / "whole")
    assert tiny.ending(tmp_path / "run") == tiny.ending(tmp_path / "whole")


def test_a_training_that_is_stopped_in_an_evaluation_leaves_no_reader(images, alone, tmp_path, forks):
    at = AtEvaluation(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with stopping() as pause, pytest.raises(Preempted):
        train(
            tiny.settings(images), tiny.execution(profile="always", workers=2), tmp_path / "run",
            callbacks=[at], pause=pause,
        )  # fmt: skip
    assert multiprocessing.active_children() == []
    assert len(forks) == 2
    train(tiny.settings(images), tiny.execution(profile="always", workers=2), tmp_path / "run")
    assert len(forks) == 4
    assert tiny.ending(tmp_path / "run") == alone


def test_a_finished_run_starts_none(images, tmp_path, forks):
    settings = tiny.settings(images, steps=2, algorithm="ERM")
    first = train(settings, tiny.execution(), tmp_path / "run")
    assert train(settings, tiny.execution(workers=2), tmp_path / "run") == first
    assert forks == []
