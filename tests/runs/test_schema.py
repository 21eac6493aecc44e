"""What the files of a run may say: the real ones pass, and whatever else JSON can hold is an error that names it."""

import sqlite3
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspreg.cli import main
from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import write_json
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import Leases, list_leases
from dspreg.runs.run import Run
from dspreg.runs.schema import check_description, check_failure, check_records, check_result, check_run
from dspreg.runs.status import read_failure, scan_store
from dspreg.runs.store import RunStore
from helpers.runs import single, write_run
from helpers.stores import planned

HUGE = 10**400
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(HUGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture
def sound(tmp_path):
    return RunFolder(write_run(tmp_path / "run", [single(0, "ash", 0.5, 0.5), single(100, "ash", 1, 1.0)])).contents()


def test_what_training_leaves_passes(sound):
    check_run("run", sound)
    settings = sound.description["settings"] | {"an option of a newer version": 3}
    check_description("run.json", sound.description | {"settings": settings, "more": [[{}]]})


def test_a_message_names_file_field_value_and_what_was_wanted(sound):
    sound.records[1]["accuracy"]["birch"]["out"] = "0.9"
    with pytest.raises(IntegrityError) as raised:
        check_run("runs/a", sound)
    assert str(raised.value) == (
        "runs/a/records.jsonl: line 2: accuracy['birch']['out'] is '0.9'; wanted a number from 0 to 1. "
        "dspreg writes no such thing"
    )


@settings(max_examples=200, deadline=None)
@given(ANYTHING, ANYTHING)
def test_anything_at_all_is_an_error_of_ours(first, second):
    described = first if isinstance(first, dict) else {"settings": first, "data": second}
    with pytest.raises(IntegrityError):
        check_description("run.json", described)
    sound = {"settings": {"steps": 5, "targets": []}, "data": {"domains": ["ash"]}, "id": "x"}
    with pytest.raises(IntegrityError):
        check_records("records.jsonl", [first], sound)
    with pytest.raises(IntegrityError):
        check_result("result.json", first if isinstance(first, dict) else {"selected": first}, sound, [])
    for read in (lambda: Run.from_json(first), lambda: check_failure("failure.json", second)):
        with suppress(DspregError):
            read()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["dataset", "targets", "algorithm", "protocol", "trial", "draw", "name", "lr"]),
                       ANYTHING))  # fmt: skip
def test_an_entry_of_a_plan_is_a_run_or_an_error_of_ours(changes):
    usual = {"dataset": "PACS", "targets": ["photo"], "algorithm": "ERM", "protocol": "swad", "trial": 0, "draw": 0}
    with suppress(ConfigError):
        assert isinstance(Run.from_json(usual | changes).id, str)


# Failures, plans and leases.


@pytest.mark.parametrize(
    "record",
    [
        [], 3, None, "text", {}, {"reason": None}, {"reason": ["a"]}, {"reason": "a", "attempts": "3"},
        {"reason": "a", "attempts": True}, {"reason": "a", "attempts": -1}, {"reason": "a", "attempts": 1.5},
        {"reason": "a", "attempts": HUGE}, {"reason": "a", "cancelled": 1}, {"reason": "a", "cancelled": "yes"},
        {"reason": "a", "attempts": 1, "reached": "x"}, {"reason": "a", "attempts": 1, "reached": HUGE},
    ],
    ids=lambda each: str(each)[:40],
)  # fmt: skip
def test_a_tampered_failure_is_damage_of_one_run(capsys, tmp_path, record):
    store, runs = planned(tmp_path / "store")
    path = store.path / "failures" / f"{runs[0].id}.json"
    write_json(path, record)
    with pytest.raises(IntegrityError, match=runs[0].id):
        read_failure(path)
    found = scan_store(store, 3)
    assert [found.summaries[run.id] for run in runs] == ["failed", *["waiting"] * 7]
    assert main(["status", str(store.path), "--once"]) == 0
    assert main(["status", str(store.path), "--json"]) == 0
    assert main(["report", str(store.path)]) == 0
    out, err = capsys.readouterr()
    assert f"{runs[0].id}.json" in out
    assert "Traceback" not in err


def test_the_reason_of_a_failure_does_not_fill_the_terminal(tmp_path):
    write_json(tmp_path / "failure.json", {"reason": "x" * 10**6, "attempts": 1})
    assert len(read_failure(tmp_path / "failure.json").reason) < 5_000


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": 5}, {"targets": "photo"}, {"targets": [["photo"]]}, {"trial": "0"}, {"trial": -1},
        {"algorithm": {}}, {"dataset": 3}, {"name": []}, {"lr": "fast"}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_tampered_plan_is_named(capsys, tmp_path, changes, with_ids):
    store, runs = planned(tmp_path / "store")
    (plan,) = store.plans()
    entries = [run.to_json() for run in runs]
    entries[1] |= changes
    ids = {"ids": [run.id for run in runs]} if with_ids else {}
    write_json(plan, {"format": "dspreg.plan/1", "runs": entries, **ids})
    with pytest.raises(IntegrityError, match=rf"{plan.name} is damaged: run 2 of it"):
        RunStore(store.path).planned_runs()
    assert main(["report", str(store.path)]) == 4
    assert main(["status", str(store.path), "--once"]) in (0, 4)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("column", "value"), [("step", "many"), ("holder", b"x"), ("expires", "never"), ("run", b"x")])
def test_leases_of_other_types_are_damage(tmp_path, column, value):
    leases = Leases(tmp_path / "claims.db")
    leases.acquire(["0" * 16])
    leases.close()
    with sqlite3.connect(tmp_path / "claims.db") as database:
        database.execute(f"UPDATE claims SET {column} = ?", (value,))
    database.close()
    with pytest.raises(IntegrityError, match=r"claims\.db is damaged"):
        list_leases(tmp_path / "claims.db")
