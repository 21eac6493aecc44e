"""The time left of a store whose runs nobody trained."""

import json

import pytest

from dspreg.cli.status_text import status_text
from dspreg.protocol.run_times import Reported, RunTimes, estimate_time_left, is_timed
from dspreg.protocol.status_json import status_json
from dspreg.runs.status import scan_store
from helpers.runs import seal
from helpers.stores import planned

STEPS, EVERY = 40, 10


def record(step, stepping=2.0, evaluating=5.0):
    return {"step": step, "seconds": {"step_seconds": stepping, "evaluate_seconds": evaluating}}


def begin(store, run, *records):
    store.folder(run).path.mkdir()
    folder = store.folder(run)
    folder.agree({"settings": {"steps": STEPS, "evaluate_every": EVERY}, "where": {"plan": run.to_json()}})
    for each in records:
        folder.records.append(each)
    return folder


def finish(store, run, *records):
    seal(begin(store, run, *records), {"selected": {"step": 0}})


def whole(stepping=2.0, evaluating=5.0):
    """The records of a run of 40 steps with five evaluations."""
    return [record(step, stepping, evaluating) for step in (0, 10, 20, 30, 39)]


@pytest.fixture
def made(tmp_path):
    """A store with four runs of ERM and four of CORAL."""
    return planned(tmp_path / "store")


def look(store, **how):
    return estimate_time_left(scan_store(store, 3), RunTimes(store), **how)


def test_nothing_is_guessed(made):
    store, runs = made
    left = look(store)
    assert (left.seconds, left.left, left.unknown) == (None, 8, {("PACS", "ERM"): 4, ("PACS", "CORAL"): 4})
    assert str(left) == "time left: unknown until a run has been evaluated twice"
    finish(store, runs[0], *whole())
    left = look(store)
    assert left.seconds == 3 * (40 * 2 + 5 * 5)
    assert left.unknown == {("PACS", "CORAL"): 4}
    assert str(left).startswith("at least about 5 min left: 7 runs, as 1 finished one took; without 4 of CORAL")


def test_finished_runs_and_those_in_training_make_the_estimate(made):
    store, runs = made
    erm, coral = runs[:4], runs[4:]
    finish(store, erm[0], *whole(2.0))
    finish(store, erm[1], *whole(4.0))
    begin(store, erm[2], record(0, 9.0), record(10, 3.0, 7.0))  # 3 s a step and 6 an evaluation
    begin(store, coral[0], record(0, 9.0), record(10, 1.0))
    leases = store.leases()
    for run, step in ((erm[2], 15), (coral[0], 11)):
        leases.renew(leases.acquire([run.id]), 1, step)
    left = look(store)
    finished = (40 * 2 + 25 + 40 * 4 + 25) / 2
    erm_left, coral_left = 25 * 3 + 3 * 6, 29 * 1 + 3 * 5
    per_coral = 40 * 1 + 5 * 5
    places = [erm_left, coral_left]  # two at a time: ERM's last one, then three of CORAL, each where one ends first
    for seconds in (finished, per_coral, per_coral, per_coral):
        places[places.index(min(places))] += seconds
    assert left.seconds == max(places)
    assert (left.jobs, left.left, left.unknown, left.finished) == (2, 6, {}, 2)
    said = look(store, reported={erm[2].id: Reported(1000.0, 2000.0)})
    assert said.seconds == 1000  # its own word, and the others beside it
    assert look(store, only={erm[3].id}).seconds == finished
    found, text = scan_store(store, 3), status_text(scan_store(store, 3), left=left)
    assert text.splitlines()[5] == "about 4 min left: 6 runs, 2 at a time, as 2 finished ones took"
    assert status_json(found, left)["time left"] == {
        "seconds": left.seconds, "runs": 6, "at a time": 2, "not counted": []
    }  # fmt: skip
    leases.close()


def test_what_runs_say_themselves_counts_before_any_has_records(made):
    store, runs = made
    begin(store, runs[0])
    leases = store.leases()
    leases.renew(leases.acquire([runs[0].id]), 1, 2)
    left = look(store, reported={runs[0].id: Reported(30.0, 40.0)}, jobs=1)
    assert left.seconds == 30 + 3 * 40
    assert left.unknown == {("PACS", "CORAL"): 4}
    leases.close()


def test_a_run_that_was_stopped_goes_on_from_its_last_record(made):
    store, runs = made
    begin(store, runs[0], record(0, 9.0), record(10, 3.0))
    left = look(store)
    assert left.seconds == (29 * 3 + 3 * 5) + 3 * (40 * 3 + 5 * 5)
    assert str(left).endswith(
        "left: 8 runs, by those that were begun; without 4 of CORAL, of which none has got far enough"
    )


def test_steps_of_a_run_scale_what_others_took(tmp_path):
    from dspreg.runs.run import Run
    from dspreg.runs.store import RunStore

    store = RunStore(tmp_path / "store")
    runs = [Run(dataset="PACS", targets=(t,), algorithm="ERM", options={"steps": n})
            for t, n in (("art", 40), ("photo", 400))]  # fmt: skip
    store.make()
    store.plan(runs)
    finish(store, runs[0], *whole())
    assert look(store).seconds == pytest.approx(10 * (40 * 2 + 25))


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        '{"step": 0}',
        '{"step": -1, "seconds": {"step_seconds": 1, "evaluate_seconds": 1}}',
        '{"step": 0, "seconds": {"step_seconds": -1, "evaluate_seconds": 1}}',
        '{"step": 0, "seconds": {"step_seconds": 1e999, "evaluate_seconds": 1}}',
        '{"step": 0, "seconds": {"step_seconds": "1", "evaluate_seconds": 1}}',
        "not JSON",
    ],
)
def test_records_from_strangers_are_no_estimate(made, line):
    store, runs = made
    finish(store, runs[0], *whole())
    (store.folder(runs[0]).path / "records.jsonl").write_text(line + "\n")
    assert look(store).unknown[("PACS", "ERM")] == 3
    if line[0] in "[{":
        assert not is_timed(json.loads(line))
    assert is_timed(record(0))


def test_all_finished_is_no_time_left(made):
    store, runs = made
    for run in runs:
        finish(store, run, *whole())
    left = look(store)
    assert (left.seconds, left.left) == (0.0, 0)
    assert "left" not in status_text(scan_store(store, 3), left=left)
