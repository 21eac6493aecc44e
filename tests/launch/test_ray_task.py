"""A run on a machine without the store: its messages, what it leaves, and what comes home whatever is interrupted."""

import os
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from dspreg.errors import ConfigError, Diverged, DspregError, IntegrityError, Notice
from dspreg.io import atomic_files as files
from dspreg.launch import ray_task
from dspreg.launch.messages import Files, NoticeIssued, Progress, Succeeded
from dspreg.launch.ray_task import PLACE, UNSENT, Assignment, TaskAttempt, attempt_run
from dspreg.launch.transfer import FolderWatch, pack, unpack
from dspreg.runs.folder import RunFolder
from dspreg.runs.process_id import this_process
from dspreg.training import train
from helpers import tiny

STEPS = 6
HOW = tiny.execution(profile="auto", save_every=2)
PLAN = {"dataset": "folder:woods"}
NOTHING = Files({})


@pytest.fixture(scope="module")
def woods(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def alone(woods, tmp_path_factory):
    """The same run, left alone, in its folder."""
    out = tmp_path_factory.mktemp("alone") / "run"
    warnings.simplefilter("ignore", Notice)
    train(tiny.settings(woods, steps=STEPS), HOW, out, plan=PLAN)
    return out


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """The temporary folder of the other machine."""
    place = tmp_path / "node"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def given(woods, come=NOTHING, **settings):
    return Assignment(tiny.settings(woods, **{"steps": STEPS, **settings}), HOW, PLAN, come)


@pytest.fixture(scope="module")
def said(woods, tmp_path_factory):
    """All words of an undisturbed attempt."""
    return list(attempt_run(given(woods)))


def test_it_comes_home_as_if_it_had_been_trained_there(said, alone, node, tmp_path):
    for word in said:
        if isinstance(word, Files):
            unpack(word, RunFolder(tmp_path / "home"))
    assert tiny.ending(tmp_path / "home") == tiny.ending(alone)
    assert not (tmp_path / "home" / "checkpoints").exists()
    assert said[-1] == Succeeded()
    assert [word for word in said if isinstance(word, Progress)][-1].steps == STEPS


def test_every_checkpoint_is_sent_and_a_file_only_where_it_has_changed(said):
    sent = [word for word in said if isinstance(word, Files)]
    steps = [int(name[len("checkpoints/step-") :][:8]) for word in sent for name in word.new if "step-" in name]
    assert set(steps) == {1, 2, 4, 5, 6}  # every second one, and those that are evaluated
    assert steps == sorted(steps)
    assert sum("run.json" in word.new for word in sent) == 1
    assert sum("profiles/start.safetensors" in word.new for word in sent) == 1
    assert "result.json" in sent[-1].new
    assert all("result.json" not in word.new for word in sent[:-1])
    assert all(len(word.checkpoints) <= 2 for word in sent)


class Interrupted(Exception):
    pass


def operations(monkeypatch, allowed):
    """So many files may be written or removed, and then the process is gone."""
    left = iter(range(allowed))

    def counted(what):
        def operation(folder, *more):
            if next(left, None) is None:
                raise Interrupted
            return what(folder, *more)

        return operation

    monkeypatch.setattr(RunFolder, "write", counted(RunFolder.write))
    monkeypatch.setattr(RunFolder, "remove", counted(RunFolder.remove))


def test_interrupted_between_any_two_files_the_run_goes_on_at_home_to_the_same_bits(said, woods, alone, tmp_path):
    expected, sent = tiny.ending(alone), [word for word in said if isinstance(word, Files)]
    marks = set()
    for allowed in range(1, 200):
        home = tmp_path / str(allowed)
        with pytest.MonkeyPatch.context() as patch:
            operations(patch, allowed)
            try:
                for word in sent:
                    unpack(word, RunFolder(home))
                whole = True
            except Interrupted:
                whole = False
        marks.add(len(list(home.glob("checkpoints/*"))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            train(tiny.settings(woods, steps=STEPS), HOW, home, plan=PLAN)
        assert tiny.ending(home) == expected, f"after {allowed} operations"
        if whole:
            break
    assert whole
    assert allowed > 15
    assert marks == {0, 1, 2, 3}  # three: the new one is there before the old one goes


def test_it_goes_on_from_what_it_is_given(said, woods, alone, node, tmp_path):
    sent = [word for word in said if isinstance(word, Files)]
    for word in sent[:3]:
        unpack(word, RunFolder(tmp_path / "home"))
    again = list(attempt_run(given(woods, pack(tmp_path / "home"))))
    first = next(word for word in again if isinstance(word, Progress) and word.steps)
    assert first.step == int(sent[2].checkpoints[-1].split("-")[1]) > 0
    assert all("profiles/start.safetensors" not in word.new for word in again if isinstance(word, Files))
    for word in again:
        if isinstance(word, Files):
            unpack(word, RunFolder(tmp_path / "home"))
    assert tiny.ending(tmp_path / "home") == tiny.ending(alone)


def test_only_files_of_a_run_travel(alone, tmp_path):
    (alone / "scheduler.log").write_text("of somebody else")
    try:
        names = set(pack(alone).new)
    finally:
        (alone / "scheduler.log").unlink()
    assert {"run.json", "result.json", "last.safetensors", "profiles/end.safetensors"} < names
    assert not names & {"lock", "scheduler.log"}


@pytest.mark.parametrize(
    "name",
    ["../run.json", "/etc/hostname", "a/run.json", "checkpoints/../../x", "tensorboard/..", "profiles/x/y.safetensors",
     "tensorboard/", "", "lock", "store.json", "models/..\\x.safetensors", "run.json\0", "scheduler.log"],
)  # fmt: skip
def test_a_worker_writes_nothing_but_files_of_its_run(tmp_path, name):
    home = RunFolder(tmp_path / "store" / "home")
    with pytest.raises(IntegrityError, match="a run has no such file"):
        unpack(Files({"run.json": b"{}", name: b"x"}), home)
    assert not (tmp_path / "store").exists()


def test_no_link_in_a_run_is_followed_to_a_worker(tmp_path):
    (tmp_path / "secret").write_text("of the user's")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key.safetensors").write_text("of the user's")
    for number, (name, target) in enumerate([("records.jsonl", "secret"), ("profiles", "private")]):
        run = tmp_path / str(number)
        run.mkdir()
        (run / "run.json").write_text("{}")
        (run / name).symlink_to(tmp_path / target)
        with pytest.raises(IntegrityError, match=f"{name} is a link"):
            pack(run)


def test_a_failure_is_sent_as_text(woods, monkeypatch):
    class OnlyHere(Exception):
        pass

    def broken(*_, **__):
        raise OnlyHere("of the user's own")

    monkeypatch.setattr(ray_task, "train", broken)
    *_, last = attempt_run(given(woods))
    assert (last.kind, last.text, last.expected, last.diverged) == ("OnlyHere", "of the user's own", False, False)
    assert "in broken" in last.traceback
    error = last.to_error()
    assert (type(error).__name__, str(error)) == ("OnlyHere", "of the user's own")
    assert not isinstance(error, OnlyHere)
    assert "in broken" in "".join(error.__notes__)


@pytest.mark.parametrize(("kind", "diverged"), [(ConfigError, False), (Diverged, True)])
def test_an_error_that_says_what_to_do_stays_one(woods, monkeypatch, kind, diverged):
    def broken(*_, **__):
        raise kind("give another", 3) if diverged else kind("give another")

    monkeypatch.setattr(ray_task, "train", broken)
    *_, last = attempt_run(given(woods))
    assert last.diverged is diverged
    assert isinstance(last.to_error(), DspregError)
    assert str(last.to_error()) == "give another"


def test_a_missing_data_set_is_the_failure_of_the_run(tmp_path):
    *_, files, last = attempt_run(given(tmp_path / "nowhere"))
    assert files == NOTHING
    assert last.expected
    assert "nowhere" in last.text


def test_what_diverges_brings_its_failure_home(woods, tmp_path):
    words = list(attempt_run(given(woods, algorithm="CORAL(weight=1e300)")))
    assert words[-1].diverged
    assert "not finite" in words[-1].text
    assert "failure.json" in words[-2].new


def test_closing_it_ends_the_training_and_leaves_nothing(woods, node):
    words = attempt_run(given(woods, steps=10_000))
    while not isinstance(next(words), Files):
        pass
    assert list(node.iterdir())
    count = threading.active_count()
    words.close()
    assert threading.active_count() == count - 1
    assert list(node.iterdir()) == []


def test_a_task_whose_messages_are_not_fetched_waits(woods, monkeypatch):
    done = []

    def chatty(*_, callbacks, **__):
        for n in range(100):
            callbacks[0].on_phase(str(n))
            done.append(n)

    monkeypatch.setattr(ray_task, "train", chatty)
    words, until = attempt_run(given(woods)), time.monotonic() + 60
    next(words)
    while len(done) < UNSENT:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)
    assert len(done) == UNSENT
    assert [word.doing for word in words if isinstance(word, Progress)] == [str(n) for n in range(100)]


def test_what_killed_tasks_left_is_removed_and_what_others_have_is_not(node):
    for name, process in (("gone", this_process().rpartition(" ")[0] + " 1"), ("here", this_process())):
        place = node / f"{PLACE}{name}"
        place.mkdir()
        (place / "process").write_text(process)
    (node / f"{PLACE}strange").mkdir()
    ray_task.clear_places()
    assert sorted(p.name for p in node.iterdir()) == [f"{PLACE}here", f"{PLACE}strange"]


def test_notices_are_sent_and_not_printed(woods, monkeypatch, capsys):
    def noticing(*_, **__):
        warnings.warn("worth knowing", Notice, stacklevel=1)

    monkeypatch.setattr(ray_task, "train", noticing)
    told = [word.text for word in attempt_run(given(woods)) if isinstance(word, NoticeIssued)]
    assert told == ["worth knowing"]
    assert capsys.readouterr().err == ""


def test_the_users_own_folders_are_searched_for_modules(woods, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_task.sys, "path", ["first"])
    monkeypatch.setattr(ray_task, "train", lambda *_, **__: None)
    list(attempt_run(Assignment({}, HOW, PLAN, NOTHING, ("own", "first"))))
    assert ray_task.sys.path == ["first", "own"]


def test_a_file_that_was_written_again_is_a_change(tmp_path):
    (tmp_path / "run.json").write_bytes(b"1")
    watch = FolderWatch(tmp_path, known=True)
    assert watch.pack_changes() == NOTHING
    files.write(tmp_path / "run.json", b"2")
    os.makedirs(tmp_path / "checkpoints")
    assert not watch.has_news()
    Path(tmp_path / "checkpoints/step-00000001-a.safetensors").write_bytes(b"c")
    assert watch.has_news()
    assert set(watch.pack_changes().new) == {"run.json", "checkpoints/step-00000001-a.safetensors"}
    assert not watch.has_news()
    Path(tmp_path / "tracking.json").write_bytes(b"{}")  # a tracker would otherwise know the run by two keys
    assert watch.has_news()
    assert set(watch.pack_changes().new) == {"tracking.json"}
    assert not watch.has_news()


def test_a_pass_of_the_network_is_a_sign_of_life():
    """c is measured inside of a step, for longer than a lease where images are many."""
    attempt = TaskAttempt(None)
    attempt.reporter.on_progress()
    assert isinstance(attempt.messages.get_nowait(), Progress)
    attempt.reporter.on_progress()
    assert attempt.messages.empty()  # not too often
