"""A run that was interrupted ends in the same bits as one that was not."""

import pytest
import torch

from dspreg import ConfigError, Profile
from dspreg.errors import Preempted
from dspreg.runs.folder import RunFolder
from dspreg.training import train
from dspreg.training.callbacks import Callback
from dspreg.training.state import State
from helpers import tiny

pytestmark = pytest.mark.filterwarnings("ignore::dspreg.Notice")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return tiny.make_images(tmp_path_factory.mktemp("images") / "woods")


@pytest.fixture(scope="module")
def undisturbed(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    train(tiny.settings(images), tiny.execution(), out)
    return tiny.ending(out)


def test_two_runs_are_equal_to_the_bit(images, undisturbed, tmp_path):
    train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == undisturbed


def test_there_is_something_to_lose(undisturbed):
    assert undisturbed["result"]["refreshes"] == 2
    assert len(undisturbed["records"]) == 5  # steps 0, 4, 8, 12, 13
    assert len({record["validation"] for record in undisturbed["records"]}) > 1
    assert len({record["log"]["loss"] for record in undisturbed["records"]}) == 5
    assert undisturbed["result"]["selected"]["step"] > 0


@pytest.mark.parametrize("moments", [(0,), (1, 0), (14, 3), (6, 6, 6), (25, 1, 1), (7, 8, 9), (35,)])
def test_stopped_anywhere_and_gone_on_it_ends_the_same(images, undisturbed, tmp_path, moments):
    for moment in moments:  # between steps, and between batches of an evaluation
        with pytest.raises(Preempted):
            train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(moment))
    train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(
    "how",
    [
        {"save_every": 1},
        {"save_every": 100},
        {"save_every": None},
        {"workers": 1},
        {"workers": 2},
        {"workers": 4, "save_every": 2},
        {"cache": "disk"},
        {"check_images": "once"},
        {"keep": "all"},
    ],
    ids=str,
)
def test_how_it_is_run_changes_no_bit(images, undisturbed, tmp_path, monkeypatch, how):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    train(tiny.settings(images), tiny.execution(**how), tmp_path / "run")
    found = tiny.ending(tmp_path / "run")
    models = [name for name in found["files"] if name.startswith("models/")]
    assert len(models) == (5 if how.get("keep") == "all" else 0)
    for name in models:
        del found["files"][name]
    assert found == undisturbed


def test_c_before_and_after_survives_too(images, tmp_path):
    for name, moments in (("a", []), ("b", [0, 3, 20])):
        for moment in moments:
            with pytest.raises(Preempted):
                train(
                    tiny.settings(images), tiny.execution(profile="auto"), tmp_path / name, pause=tiny.stop_at(moment)
                )
        train(tiny.settings(images), tiny.execution(profile="auto"), tmp_path / name)
    assert tiny.ending(tmp_path / "a") == tiny.ending(tmp_path / "b")
    before, after = (Profile.load(tmp_path / "a" / "profiles" / f"{n}.safetensors") for n in ("start", "end"))
    assert before.null is not None
    assert not torch.equal(before.c.flat(), after.c.flat())


@pytest.mark.parametrize("every", [1, 5, 100])
def test_evaluating_more_or_less_often_moves_no_parameter(images, undisturbed, tmp_path, every):
    train(tiny.settings(images, evaluate_every=every, evaluate="all"), tiny.execution(), tmp_path / "run")
    found = tiny.ending(tmp_path / "run")
    for name in ("last.safetensors", "refreshes.jsonl"):
        assert found["files"][name] == undisturbed["files"][name]
    accuracy = {r["step"]: r["accuracy"] for r in found["records"]}
    assert len(accuracy) == {1: 14, 5: 4, 100: 2}[every]
    for record in undisturbed["records"]:  # where both evaluated, both saw the same
        for domain, splits in record["accuracy"].items():
            for split, value in splits.items():
                if record["step"] in accuracy:
                    assert accuracy[record["step"]][domain][split] == value


class Counting(Callback):
    steps = records = 0

    def on_step_end(self, step, log):
        self.steps += 1

    def on_evaluation(self, record):
        self.records += 1


def stop_after_step_ten(images, out, *, evaluated=False):
    """Or after the evaluation of step 12, where the window is empty and the next record is not due."""
    counting = Counting()

    def pause():
        if counting.records == 4 if evaluated else counting.steps == 11:
            raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        train(tiny.settings(images), tiny.execution(), out, callbacks=[counting], pause=pause)


DROPPED = {
    "parameters": lambda s: s["algorithm"].update({n: t * 0.999 for n, t in floats(s["algorithm"]) if "weight" in n}),
    "batch norm": lambda s: s["algorithm"].update(
        {n: torch.zeros_like(t) for n, t in floats(s["algorithm"]) if "running_mean" in n}
    ),
    "weights of domains": lambda s: s["algorithm"].update(
        {n: torch.zeros_like(t) for n, t in floats(s["algorithm"]) if "log_q" in n}
    ),
    "c": lambda s: extra(s, "c")["c"].clear(),
    "age of c": lambda s: extra(s, "c").update(refreshed_at=None),
    "memory of gradients": lambda s: extra(s, "memory").update(memory={"mean": {}, "mass": 0.0, "steps": 0}),
    "step": lambda s: extra(s, "steps").update(steps=extra(s, "steps")["steps"] - 1),
    "optimiser's moments": lambda s: s["optimizer"].update(state={}),
    "learning rate": lambda s: s["optimizer"]["param_groups"][0].update(lr=1e-3),
    "window of the log": lambda s: s["sums"].clear(),
    "selected model": lambda s: s["selected"].update(validation=2.0),
    "records": lambda s: s.update(records=None),
    "refreshes": lambda s: s.update(refreshes=None),
    "last record": lambda s: s.update(recorded=None),
}


def floats(state):
    return [(n, t) for n, t in state.items() if isinstance(t, torch.Tensor) and t.is_floating_point()]


def extra(state, name):
    return next(v for k, v in state["algorithm"].items() if k.endswith("_extra_state") and name in v)


@pytest.mark.parametrize("part", DROPPED)
def test_dropping_any_part_of_the_saved_state_is_seen(images, undisturbed, tmp_path, monkeypatch, part):
    """After step 10 the window holds two steps, c was measured twice and the selected model is an earlier one."""
    stop_after_step_ten(images, tmp_path / "run", evaluated=part == "last record")
    whole = State.unpack
    seen = []

    def broken(self, saved):
        before = repr(saved)
        DROPPED[part](saved)
        seen.append(repr(saved) != before)
        whole(self, saved)

    monkeypatch.setattr(State, "unpack", broken)
    train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert seen == [True]
    assert tiny.ending(tmp_path / "run") != undisturbed


def test_without_dropping_it_ends_the_same(images, undisturbed, tmp_path):
    stop_after_step_ten(images, tmp_path / "run")
    train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    assert tiny.ending(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"lr": 1e-4}, "settings.lr: 0.003 → 0.0001"),
        ({"steps": 15}, "settings.steps: 14 → 15"),
        ({"targets": ("ash",)}, "settings.targets: ['elm'] → ['ash']"),
        ({"algorithm": "ERM"}, "settings.algorithm"),
        ({"trial": 1}, "settings.trial: 0 → 1"),
    ],
)
def test_a_changed_setting_is_refused_with_the_difference(images, tmp_path, change, shown):
    with pytest.raises(Preempted):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(3))
    with pytest.raises(ConfigError) as refused:
        train(tiny.settings(images, **change), tiny.execution(), tmp_path / "run")
    assert shown in str(refused.value)
    assert "another --out" in str(refused.value)


def test_a_changed_image_is_refused_and_a_moved_folder_is_not(tmp_path):
    root = tiny.make_images(tmp_path / "woods")
    with pytest.raises(Preempted):
        train(tiny.settings(root), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(3))
    moved = tmp_path / "elsewhere" / "woods"
    moved.parent.mkdir()
    root.rename(moved)
    with pytest.raises(Preempted):
        train(tiny.settings(moved), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(3))
    image = next((moved / "birch" / "dog").iterdir())
    data = bytearray(image.read_bytes())
    data[-20] ^= 1
    image.write_bytes(data)
    with pytest.raises(ConfigError, match=r"data\.fingerprints\.birch"):
        train(tiny.settings(moved), tiny.execution(), tmp_path / "run")


def test_other_threads_are_refused_unless_allowed(images, tmp_path):
    with pytest.raises(Preempted):
        train(tiny.settings(images), tiny.execution(), tmp_path / "run", pause=tiny.stop_at(3))
    with pytest.raises(ConfigError, match=r"environment\.threads: 1 → 2\nresults would not be bitwise identical"):
        train(tiny.settings(images), tiny.execution(threads=2), tmp_path / "run")
    train(tiny.settings(images), tiny.execution(threads=2, allow_changed_environment=True), tmp_path / "run")
    assert RunFolder(tmp_path / "run").result()["last"]["step"] == 13


def test_a_finished_run_is_verified_and_left_alone(images, tmp_path):
    first = train(tiny.settings(images), tiny.execution(), tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.name != "lock"}
    assert train(tiny.settings(images), tiny.execution(), tmp_path / "run") == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.name != "lock"} == before
    assert not (tmp_path / "run" / "checkpoints").exists()
    (tmp_path / "run" / "checkpoints").mkdir()  # killed between the last file and tidying up
    (tmp_path / "run" / "checkpoints" / "step-00000014-0.safetensors").touch()
    assert train(tiny.settings(images), tiny.execution(threads=2), tmp_path / "run") == first
    assert not (tmp_path / "run" / "checkpoints").exists()
