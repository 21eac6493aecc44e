"""What a callback is told, and when."""

import pytest

from dspreg import Callback
from dspreg.errors import Preempted
from dspreg.launch.heartbeat import Heartbeat
from dspreg.launch.reporter import ProgressReporter
from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.callbacks import CallbackList, OldDisplay, ProgressBar
from dspreg.training.time_left import RunClock, TimeLeftLog
from dspreg.training.trackers import Tracker
from helpers import tiny

EVENTS = [name for name in vars(Callback) if name.startswith("on_")]
OFTEN = ("on_progress", "on_phase", "on_image_check")


class Events(Callback):
    """Keeps what it was told."""

    def __init__(self):
        self.told = []
        for name in EVENTS:
            setattr(self, name, lambda *given, name=name: self.told.append((name, given)))

    @property
    def names(self):
        return [name.removeprefix("on_") for name, _ in self.told if name not in OFTEN]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods", per_class=3)


def go(images, out, *callbacks, pause=lambda: None):
    settings = tiny.settings(images, algorithm="ERM", steps=3, evaluate_every=2)
    return train(settings, tiny.execution(save_every=100), out, callbacks=callbacks, pause=pause)


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_the_events_of_a_training_come_in_their_order_with_what_they_are_about(images, tmp_path):
    events, out = Events(), tmp_path / "run"
    result = go(images, out, events)
    once = ["step_end", "evaluation", "checkpoint"]
    assert events.names == ["train_start", *once, "step_end", *once, "selected", "train_end"]
    given = {name: [values for each, values in events.told if each == name] for name in EVENTS}
    assert [step for step, _ in given["on_step_end"]] == [0, 1, 2]
    records = list(RunFolder(out).records)
    assert [record for (record,) in given["on_evaluation"]] == records
    assert given["on_checkpoint"] == [(1,), (3,)]
    assert given["on_selected"] == [(next(r for r in records if r["step"] == result["selected"]["step"]),)]
    again = Events()
    go(images, out, again)
    assert again.names == ["train_end"]


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_of_a_training_that_is_stopped_and_resumed(images, tmp_path):
    first, second, out = Events(), Events(), tmp_path / "run"
    moments = iter(range(1000))

    def pause():
        if "evaluation" in first.names and next(moments) == 1:
            raise Preempted("stopped")

    with pytest.raises(Preempted):
        go(images, out, first, pause=pause)
    assert first.names[-3:] == ["checkpoint", "error", "train_end"]
    assert isinstance(dict(first.told)["on_error"][0], Preempted)
    go(images, out, second)
    assert second.names[:2] == ["train_start", "resume"]
    (step,) = (given[1] for name, given in second.told if name == "on_train_start")
    steps = [given[0] for name, given in [*first.told, *second.told] if name == "on_step_end"]
    assert steps == [0, 1, 2]
    assert second.told[0][0] == "on_train_start"
    assert step == len([name for name in first.names if name == "step_end"])


def test_several_callbacks_as_one_pass_every_event_on():
    events = Events()
    for name in EVENTS:
        count = getattr(Callback, name).__code__.co_argcount - 1
        getattr(CallbackList([events, events]), name)(*range(count))
        assert events.told[-2:] == [(name, tuple(range(count)))] * 2


@pytest.mark.parametrize("ours", [ProgressBar, RunClock, TimeLeftLog, ProgressReporter, Heartbeat, Tracker, OldDisplay])
def test_displays_heartbeats_and_trackers_are_callbacks_like_those_of_users(ours):
    assert issubclass(ours, Callback)
    unknown = [n for n in vars(ours) if n.startswith("on_") and n not in EVENTS]
    assert not unknown  # it would never be called
