"""The clock of a training, on trainings that are played with times we choose."""

from types import SimpleNamespace

import pytest

from dspreg.algorithms.measure import refresh_steps
from dspreg.algorithms.registry import StackSpec
from dspreg.config.train_config import Execution
from dspreg.protocol.estimate import Prices, Work
from dspreg.training.execution import layers_of
from dspreg.training.loop import evaluates_at
from dspreg.training.time_left import RunClock, TimeLeftLog

EPOCH = 20


class Played:
    """A training whose steps take the time they are told to."""

    def __init__(self, algorithm="ERM", steps=101, every=25, start=0, profile=7.0, device="cpu", **took):
        settings = SimpleNamespace(steps=steps, evaluate_every=every, algorithm=algorithm)
        execution = Execution(device=device)
        stack = StackSpec.parse(algorithm)
        self.experiment = SimpleNamespace(settings=settings, execution=execution, stack=stack, epoch=EPOCH)
        self.due = set(refresh_steps(layers_of(stack), steps, EPOCH))
        self.took = {"first": 9.0, "step": 0.5, "evaluate": 4.0, "save": 1.0, "refresh": 3.0} | took
        self.profile, self.start, self.time = profile if self.due else 0.0, start, 100.0
        self.clock, self.said, self.ahead = RunClock(lambda: self.time), [], 0.0
        self.log = TimeLeftLog(lambda text: self.said.append((self.time, text)), self.clock)
        self.left = {}  # step → estimate
        self.begins = {}  # step → when it was over

    def play(self, looks=None):
        clock, took, s = self.clock, self.took, self.experiment.settings
        clock.on_train_start(self.experiment, self.start)
        if self.profile and not self.start:
            clock.on_phase("measuring c before training")
            self.time += self.profile
            clock.on_phase("")
        for t in range(self.start, s.steps):
            self.time += took["first"] if t == self.start else took["step"]
            self.time += took["refresh"] * (t in self.due)
            clock.on_step_end(t, looks or {"loss": 1.0})
            self.log.on_step_end(t, {})
            self.left[t], self.begins[t] = clock.seconds_left(), self.time
            if evaluates_at(self.experiment, t):
                clock.on_phase("evaluating")
                self.time += took["evaluate"]
                clock.on_evaluation({})
                self.time += took["save"]
        if self.profile:
            clock.on_phase("measuring c after training")
            self.time += self.profile
        return self


def test_an_estimate_comes_after_the_first_steps_and_is_right():
    played = Played().play()
    known = [t for t, left in played.left.items() if left is not None]
    assert known[0] == 4  # step 0 is slow, step 1 follows the evaluation; then three steps
    for t in known:
        due = evaluates_at(played.experiment, t)  # the evaluation after this step is not counted any more
        assert played.begins[t] + played.left[t] == pytest.approx(played.time - due * 5.0)
    assert len(played.said) == 1
    assert played.said[0][1] == "about 68 s left: 96 steps at 0.5 s, 4 evaluations at 5 s"


@pytest.mark.parametrize("algorithm", ["DSPReg", "Anchor", "DSPReg(refresh_steps=30)", "SAM+DSPReg"])
def test_measurements_of_c_are_counted(algorithm):
    """The first estimates take the profile before training for the price of a measurement, later ones what was seen."""
    played = Played(algorithm, steps=201, profile=3.0).play()
    assert len(played.due) in (5, 6)
    for t, left in played.left.items():
        if left is not None and not evaluates_at(played.experiment, t):
            assert played.begins[t] + left == pytest.approx(played.time), t
    assert "measurements of c at 3 s" in played.said[0][1]


def test_a_measurement_that_was_seen_replaces_the_profile():
    played = Played("DSPReg", steps=201, profile=30.0, refresh=3.0).play()
    first = min(played.due)
    before, after = played.left[first - 1], played.left[first]
    others = len(played.due) - 1
    assert before == pytest.approx((201 - first) * 0.5 + 30 * (others + 2) + 5 * sum(
        evaluates_at(played.experiment, t) for t in range(first, 201)))  # fmt: skip
    assert after == pytest.approx(before - 30 - 0.5 - 27 * (others + 1))


def test_a_resumed_training_knows_earlier_evaluations():
    played = Played(steps=101, every=50, start=60)
    played.clock.on_train_start(played.experiment, 60)
    played.clock.on_resume([{"seconds": {"evaluate_seconds": 40.0}}])
    for t in range(60, 66):
        played.time += 2.0
        played.clock.on_step_end(t, {})
    assert played.clock.prices() == Prices(2.0, 40.0)
    assert played.clock.work_left() == Work(35, 1, 0)
    assert played.clock.seconds_left() == 35 * 2 + 40
    assert played.clock.whole_seconds() == 101 * 2 + 3 * 40


def test_slow_steps_are_not_waited_for():
    played = Played(step=60.0).play()
    assert min(t for t, left in played.left.items() if left is not None) == 1


def test_a_device_that_works_ahead_is_looked_at_now_and_then():
    """Steps seem to take no time until the log is looked at; then all that was queued has been done."""
    played = Played(device="cuda", steps=301, every=1000, step=0.0, first=1.0)

    class Log(dict):
        looks = 0

        def __getitem__(self, name):
            Log.looks += 1
            played.time += played.clock.unseen * 0.5 - 0.0
            return 1.0

    queue = played.clock
    queue.on_train_start(played.experiment, 0)
    played.time += 1.0
    queue.on_step_end(0, Log())
    queue.on_phase("evaluating")
    played.time += 4.0
    queue.on_evaluation({})
    for t in range(1, 300):
        played.time += 0.05  # the host is ten times as fast as the device
        queue.on_step_end(t, Log())
    assert queue.prices().step == pytest.approx(0.5 + 0.05, rel=0.02)
    assert Log.looks < 10


def test_of_a_short_training_nothing_is_said():
    assert Played(steps=11, step=0.1).play().said == []


def test_a_training_that_slows_down_is_said_again():
    played = Played(steps=2001, every=1000)
    played.took["step"] = 0.5
    clock = played.clock
    clock.on_train_start(played.experiment, 0)
    for t in range(400):
        played.time += 0.5 if t < 100 else 2.0
        clock.on_step_end(t, {})
        played.log.on_step_end(t, {})
    assert len(played.said) >= 2
    assert played.said[-1][1].startswith("step ")
