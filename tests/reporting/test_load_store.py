"""A store's report: counted against the plan, and for every run without a result the reason."""

import random
import shutil
import subprocess
import sys

import pytest

from dspreg.cli import main
from dspreg.errors import ConfigError, DataError, IntegrityError, Notice
from dspreg.io.atomic_files import write_json
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.reporting.load import read_runs
from dspreg.reporting.tables import make_tables, select_rows
from dspreg.runs.store import RunStore
from helpers.runs import DOMAINS, single, write_run

PLAN = list(leave_one_out({"trees": DOMAINS}, ["ERM"], trials=2, draws=1, only="training"))


@pytest.fixture
def store(tmp_path):
    return made_store(tmp_path / "store", PLAN)


def made_store(path, plan):
    store = RunStore(path)
    store.make()
    store.plan(plan)
    return store


def begin(store, run, **changes):
    """A run folder as training leaves it: finished unless told otherwise."""
    (target, *_) = run.targets
    records = [single(0, target, 0.5, 0.5), single(100, target, 0.5 + 0.1 * run.trial, 0.6)]
    given = {"targets": run.targets, "algorithm": run.algorithm, "trial": run.trial, "draw": run.draw}
    given |= {"plan": run.to_json(), "steps": 301} | dict(run.options)
    write_run(store.folder(run).path, changes.pop("records", records), **given | changes)


def the_run(target, trial, plan=PLAN):
    (found,) = [run for run in plan if run.targets == (target,) and run.trial == trial]
    return found


def states(store):
    return {(*t.targets, t.trial): t.why for t in read_runs(store.path)[0]}


def cells(store, label="ERM"):
    table = make_tables(select_rows(read_runs(store.path)[0]))[0]
    (row,) = [row for row in table.rows if row.label == label]
    return dict(zip(table.columns, row.cells, strict=True))


# Counting.


def test_what_was_planned_counts_and_not_what_is_there(store):
    begin(store, the_run("ash", 0))
    begin(store, the_run("ash", 1))
    begin(store, the_run("birch", 1))
    found = cells(store)
    assert found["runs"].text == "3/6"
    assert (found["ash"].found, found["ash"].expected) == (2, 2)
    assert (found["birch"].found, found["birch"].expected) == (1, 2)
    assert found["birch"].format() == "60.0 (1/2)"  # of one trial no spread is known
    assert found["cedar"].reason == "not started"
    there = make_tables(select_rows(read_runs(store.path / "runs")[0]))[0].rows[0].cells[-1]
    assert there.text == "3/3"  # a folder of runs is not a store


def test_a_store_in_which_nothing_was_begun(store):
    found = cells(store)
    assert list(found) == [*DOMAINS, "mean", "worst", "runs"]
    assert (found["ash"].reason, found["runs"].text) == ("not started", "0/6")


def test_a_domain_that_nobody_planned_is_not_missing(tmp_path):
    plan = [run for run in PLAN if run.targets == ("ash",) or run.trial == 0]
    store = made_store(tmp_path / "store", [run for run in plan if run.targets != ("cedar",)])
    for run in store.planned_runs():
        begin(store, run)
    found = cells(store)
    assert (found["ash"].format(), found["birch"].format()) == ("55.0 ± 3.5", "50.0")  # and no (1/2)
    assert found["cedar"].reason == "not planned"
    assert found["runs"].text == "3/3"


def test_averages_count_trials_that_are_planned_for_all_domains(tmp_path):
    store = made_store(tmp_path / "store", [run for run in PLAN if run.targets == ("ash",) or run.trial == 0])
    for run in store.planned_runs():
        begin(store, run)
    (cell, _) = make_tables(select_rows(read_runs(store.path)[0]))[1].rows[0].cells
    assert (cell.value, cell.found, cell.expected) == (50.0, 1, 1)


def test_plans_that_ask_for_different_things_have_rows_of_their_own(tmp_path):
    short, long = (
        list(leave_one_out({"trees": DOMAINS}, ["ERM"], trials=1, draws=1, only="training", options={"steps": n}))
        for n in (101, 301)
    )
    store = made_store(tmp_path / "store", short)
    store.plan(long)
    assert cells(store, "ERM [steps=101]")["runs"].text == cells(store, "ERM [steps=301]")["runs"].text == "0/3"
    begin(store, short[0])
    assert cells(store)["runs"].text == "1/3"
    assert cells(store, "ERM [steps=301]")["runs"].text == "0/3"
    begin(store, long[0])
    begin(store, long[1])
    assert cells(store, "ERM [steps=101]")["runs"].text == "1/3"
    assert cells(store, "ERM [steps=301]")["runs"].text == "2/3"
    assert cells(store, "ERM [steps=101]")["birch"].reason == "not started"


@pytest.mark.parametrize("first", ["finished", "stopped"])
def test_of_two_folders_of_one_run_the_finished_one_counts(tmp_path, first):
    """A copy that was made half-way, found before or after the run itself."""
    names = {"finished": "a" if first == "finished" else "b", "stopped": "b" if first == "finished" else "a"}
    records = [single(0, "ash", 0.5, 0.5), single(100, "ash", 0.6, 0.6)]
    for state, name in names.items():
        write_run(tmp_path / name, records, targets=("ash",), finish=state == "finished")
    (row,) = select_rows(read_runs(tmp_path)[0])
    assert (row.finished, row.accuracy("ash", 0)) == (1, 0.6)


def test_runs_under_other_conditions_are_missing_in_a_row_and_not_forgotten(store):
    for run in PLAN:
        begin(store, run, threads=1 + run.trial)
    for label in ("ERM [threads=1]", "ERM [threads=2]"):
        found = cells(store, label)
        assert found["runs"].text == "3/6"
        assert (found["ash"].found, found["ash"].expected) == (1, 2)


def test_a_run_of_another_plan_or_of_none_is_named_and_left_out(store):
    begin(store, the_run("ash", 0))
    store.folder(the_run("ash", 0)).path.rename(store.folder(the_run("ash", 1)).path)
    write_run(store.path / "runs/mine", [single(0, "ash", 1.0, 1.0)])
    traces, left_out = read_runs(store.path)
    assert not any(each.finished for each in traces)
    assert states(store)["ash", 0] == "not started"
    assert states(store)["ash", 1].startswith("damaged: ")
    assert "holds another run than its name says" in left_out[0]
    assert "mine holds a run that no plan of the store names" in left_out[1]
    assert len(left_out) == 2


# Why there is no number.


def test_every_state_in_words(tmp_path):
    plan = list(leave_one_out({"trees": DOMAINS}, ["ERM"], trials=4, draws=1, only="training"))
    store = made_store(tmp_path / "store", plan)
    runs = {(run.targets[0], run.trial): run for run in plan}
    begin(store, runs["ash", 0])
    store.fail(runs["ash", 0], DataError("before it was finished"))
    begin(store, runs["ash", 1], finish=False)
    begin(store, runs["ash", 2], finish=False, records=[])
    begin(store, runs["ash", 3])
    (store.folder(runs["ash", 3]) / "records.jsonl").write_bytes(b"{}\n")
    for _ in range(3):
        store.fail(runs["birch", 0], DataError("no images in trees"))
    begin(store, runs["birch", 1], failure="step 3: the loss is not finite")
    begin(store, runs["birch", 2], failure="step 3: the loss is not finite")
    store.fail(runs["birch", 2], DataError("step 3: the loss is not finite"))
    store.cancel(runs["birch", 3])
    begin(store, runs["cedar", 0], finish=False)
    leases = store.leases()
    for key, step in ((("cedar", 0), 120), (("cedar", 1), 7)):
        leases.renew(leases.acquire([runs[key].id]), 1, step)
    (store.path / f"failures/{runs['cedar', 2].id}.json").write_text("[]")
    found = states(store)
    leases.close()
    assert found.pop(("ash", 3)).startswith(f"damaged: {store.folder(runs['ash', 3]) / 'records.jsonl'} is damaged")
    damaged = found.pop(("cedar", 2))
    assert damaged.startswith("damaged: ")
    assert damaged.endswith(f"{runs['cedar', 2].id}.json can't be read: it is no failure record")
    assert found == {
        ("ash", 0): "finished",
        ("ash", 1): "stopped at step 100 of 301",
        ("ash", 2): "stopped before its first record",
        ("birch", 0): "failed after 3 attempts: no images in trees",
        ("birch", 1): "failed: step 3: the loss is not finite",
        ("birch", 2): "failed: step 3: the loss is not finite",
        ("birch", 3): "cancelled: dspreg retry takes it up again",
        ("cedar", 0): "running at step 120 of 301 (held by a sweeper)",
        ("cedar", 1): "running at step 7 (held by a sweeper)",
        ("cedar", 3): "not started",
    }


def test_a_killed_sweeper_runs_nothing(store):
    run = the_run("ash", 0)
    begin(store, run, finish=False)
    program = (
        f"from dspreg.runs.store import RunStore\nimport os\nleases = RunStore({str(store.path)!r}).leases()\n"
        f"leases.renew(leases.acquire([{run.id!r}]), 1, 200)\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    assert states(store)["ash", 0] == "stopped at step 100 of 301"


def test_a_damaged_database_of_claims_is_said_and_nothing_else_is_lost(store):
    begin(store, the_run("ash", 0))
    (store.path / "claims.db").write_bytes(b"no database, and longer than a header of one" * 100)
    with pytest.warns(Notice, match=r"leases can't be read: .*claims\.db is damaged"):
        assert states(store)["ash", 1] == "not started"


# The command.


def printed(capsys, store, form="text"):
    assert main(["report", str(store.path), "--format", form]) == 0
    return capsys.readouterr().out


def test_the_whole_table_of_an_unfinished_store(capsys, store):
    for run in PLAN:
        if run.targets != ("cedar",):
            begin(store, run)
    begin(store, the_run("cedar", 0), finish=False)
    assert printed(capsys, store).startswith(
        "trees: accuracy on each domain held out, in %; training-domain validation\n"
        "\n"
        "            ash       birch  cedar   mean  worst  runs\n"
        "ERM  55.0 ± 3.5  55.0 ± 3.5  – [1]  – [2]  – [2]   4/6\n"
        "\n"
        "[1] stopped at step 100 of 301; not started\n"
        "[2] a part of it is missing\n"
    )


def test_the_bytes_of_a_finished_stores_report_do_not_depend_on_how_it_was_made(capsys, tmp_path):
    plan = list(leave_one_out({"trees": DOMAINS}, ["ERM", "IRM"], trials=2, draws=2, only="training"))
    whole = made_store(tmp_path / "whole", plan)
    for run in plan:
        begin(whole, run)
    forms = ("text", "markdown", "latex", "csv", "json")
    expected = [printed(capsys, whole, form) for form in forms]
    assert all("12/12" in each for each in expected)
    for seed in range(2):
        other = made_store(tmp_path / f"other-{seed}", plan)
        for run in random.Random(seed).sample(plan, len(plan)):
            begin(other, run)
        leases = other.leases()
        assert leases.acquire([plan[seed].id])  # a sweeper that was killed after its last run
        other.fail(plan[0], DataError("an attempt before the last"))
        assert [printed(capsys, other, form) for form in forms] == expected
        leases.close()


def test_runs_that_are_not_there_are_said_where_domainbeds_folders_can_not_say_it(capsys, store, tmp_path):
    begin(store, the_run("ash", 0))
    begin(store, the_run("ash", 1), finish=False)
    assert main(["report", str(store.path), "--write-domainbed", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("1 runs written")
    assert "5 unfinished runs were not written" in err


def test_looking_writes_nothing(capsys, store):
    def there():
        return {p: p.read_bytes() for p in store.path.rglob("*") if p.is_file()}

    begin(store, the_run("ash", 0), finish=False)
    before = there()
    printed(capsys, store)
    assert there() == before
    store.leases().close()
    before = there()
    assert [p.name for p in before].count("claims.db") == 1
    printed(capsys, store)
    assert there() == before


def test_a_store_without_a_sound_plan(store):
    (plan,) = (store.path / "plans").iterdir()
    for broken in ({"format": "dspreg.plan/1"}, {"format": "dspreg.plan/1", "runs": 3}, {"format": "x", "runs": []}):
        write_json(plan, broken)
        with pytest.raises(IntegrityError, match=r"\.json is (damaged: it has no list|of the format 'x')"):
            read_runs(store.path)
    plan.unlink()
    with pytest.raises(ConfigError, match="nothing is planned in "):
        read_runs(store.path)
    shutil.rmtree(store.path / "plans")
    begin(store, PLAN[0])
    assert [each.finished for each in read_runs(store.path)[0]] == [True]
