"""A store of runs: how a run stands is what its files say now."""

import json
import shutil

import pytest

from dspreg.errors import ConfigError, DataError, IntegrityError
from dspreg.runs import store as store_module
from dspreg.runs.run import Run
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from helpers.runs import seal

ONE = Run(dataset="PACS", targets=("sketch",), algorithm="ERM")
TWO = Run(dataset="PACS", targets=("photo",), algorithm="ERM")


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "store")
    made.make()
    return made


def begin(store, run):
    store.folder(run).path.mkdir()
    store.folder(run).agree({"settings": {}, "where": {"plan": run.to_json()}})
    return store.folder(run)


def finish(store, run):
    folder = begin(store, run)
    folder.records.append({"step": 0})
    folder.write("last.safetensors", b"weights")
    seal(folder, {"selected": {"step": 0}})
    return folder


PAIR = Run(dataset="PACS", targets=("photo", "sketch"), algorithm="ERM", options={"weights": "größe\\u \n.safetensors"})


@pytest.mark.parametrize("runs", [[], [ONE], [ONE, TWO, PAIR]])
def test_a_plan_written_run_by_run_is_the_text_of_the_whole(store, runs):
    store.plan(runs)
    (path,) = store.plans()
    whole = {"format": "dspreg.plan/1", "ids": [run.id for run in runs], "runs": [run.to_json() for run in runs]}
    text = json.dumps(whole, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    assert path.read_bytes() == text.encode()
    assert store.planned_runs() == runs


def test_from_new_to_finished(store):
    assert store.status(ONE).status == RunStatus.NOT_STARTED
    folder = begin(store, ONE)
    assert store.status(ONE).status == RunStatus.STOPPED
    shutil.rmtree(folder.path)
    finish(store, ONE)
    state = store.status(ONE)
    assert (state.status, state.result["selected"]) == (RunStatus.FINISHED, {"step": 0})
    assert store.status(TWO).status == RunStatus.NOT_STARTED


def test_a_folder_under_another_runs_name_does_not_count(store):
    finish(store, ONE).path.rename(store.folder(TWO).path)
    assert store.status(ONE).status == RunStatus.NOT_STARTED
    state = store.status(TWO)
    assert state.status == RunStatus.DAMAGED
    assert "holds another run than its name says" in state.reason


@pytest.mark.parametrize("plan", [None, 3, {}, {"dataset": "PACS"}, {**ONE.to_json(), "stepz": 3}])
def test_a_folder_whose_plan_is_none_does_not_count(store, plan):
    store.folder(ONE).path.mkdir()
    store.folder(ONE).agree({"settings": {}, "where": {"plan": plan}})
    assert store.status(ONE).status == RunStatus.DAMAGED


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "last.safetensors", "result.json"])
def test_damage_is_named_and_never_finished(store, name):
    path = finish(store, ONE) / name
    whole = path.read_bytes()
    for damaged in (b"", whole[:-2], bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(damaged)
        state = store.status(ONE)
        assert state.status == RunStatus.DAMAGED
        assert name in state.reason
    path.write_bytes(whole)
    assert store.status(ONE).status == RunStatus.FINISHED
    path.unlink()
    assert store.status(ONE).status != RunStatus.FINISHED


def test_models_may_be_left_unread_but_not_absent(store):
    path = finish(store, ONE) / "last.safetensors"
    path.write_bytes(b"other")
    assert store.status(ONE).status == RunStatus.DAMAGED
    assert store.status(ONE, weights=False).status == RunStatus.FINISHED
    path.unlink()
    assert store.status(ONE, weights=False).status == RunStatus.DAMAGED


def test_failures_are_counted_and_forgotten(store):
    store.fail(ONE, DataError("no images"))
    store.fail(ONE, DataError("no images today"))
    assert (store.status(ONE).status, store.status(ONE).reason) == (RunStatus.FAILED, "no images today")
    failure = json.loads((store.path / "failures" / f"{ONE.id}.json").read_text())
    assert failure["attempts"] == 2
    assert "traceback" not in failure
    store.succeed(ONE)
    assert store.status(ONE).status == RunStatus.NOT_STARTED


def test_plans_are_kept_each_once(store):
    store.plan([ONE, TWO])
    store.plan([ONE, TWO])
    store.plan([ONE])
    assert len(list((store.path / "plans").iterdir())) == 2
    assert {run.id for run in store.planned_runs()} == {ONE.id, TWO.id}
    assert len(store.planned_runs()) == 2


def test_only_a_store_or_nothing_is_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        RunStore(tmp_path / "file").make()
    with pytest.raises(ConfigError, match="no store of runs"):
        RunStore(tmp_path).make()
    store = RunStore(tmp_path / "store")
    store.make()
    store.make()
    (store.path / "store.json").write_text('{"format": "dspreg.store/2"}')
    with pytest.raises(IntegrityError, match=r"is of the format 'dspreg.store/2'; this version"):
        store.make()


def test_a_store_that_another_makes_at_the_same_moment_is_shared(tmp_path, monkeypatch):
    """Looked for, not there; then the other sweeper made it, and then this one looks what is in the folder."""
    store, looks, holds = RunStore(tmp_path / "store"), [], store_module.holds_file

    def looking(path):
        if path.name == "store.json" and not looks:
            looks.append(path)
            RunStore(tmp_path / "store").make()
            return False
        return holds(path)

    monkeypatch.setattr(store_module, "holds_file", looking)
    store.make()
    assert looks
