"""Sweeps on this machine: what was finished stays, what fails is kept, and others' work is left to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from dspreg.errors import CantWrite, Preempted, ResourceError
from dspreg.launch import attempt
from dspreg.launch.heartbeat import RENEWALS, Heartbeat
from dspreg.launch.queue import POLL, RunQueue
from dspreg.runs.leases import LeaseLost, Leases
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from helpers.small_runs import EXECUTION
from helpers.sweeps import alone, assert_same_bits, bytes_in, three


def test_every_run_is_run_once_and_then_left_as_it_is(images, store):
    runs, seen = three(images), []
    ended = alone(runs, store, EXECUTION, on_run=lambda run, status, already: seen.append((run, already)))
    assert [ended[run.id].status for run in runs] == ["finished"] * 3
    assert seen == [(run, False) for run in runs]
    assert sorted(p.name for p in (store.path / "runs").iterdir()) == sorted(run.id for run in runs)
    first = bytes_in(store)
    seen.clear()
    again = alone(runs, store, EXECUTION, on_run=lambda run, status, already: seen.append((run, already)))
    assert seen == [(run, True) for run in runs]
    assert bytes_in(store) == first
    assert again == ended
    assert store.leases().list_all() == []


def test_a_run_of_a_sweep_is_the_run_that_train_trains(images, store, tmp_path):
    from dspreg.training import train

    run = three(images)[0]
    alone([run], store, EXECUTION)
    by_hand = train(run.settings(), EXECUTION, tmp_path / "alone")
    found = store.status(run).result
    assert found["run"] == by_hand["run"]  # the result id: no plan and no path is part of it
    assert found["selected"] == by_hand["selected"]
    assert found["files"]["last.safetensors"] == by_hand["files"]["last.safetensors"]


def test_moved_images_are_the_same_runs(images, store, tmp_path):
    alone(three(images), store, EXECUTION)
    shutil.copytree(images, tmp_path / "elsewhere" / "photos")
    seen = []
    moved = three(tmp_path / "elsewhere" / "photos")
    alone(moved, store, EXECUTION, on_run=lambda run, status, already: seen.append((status.status, already)))
    assert seen == [("finished", True)] * 3


def test_a_failed_run_keeps_its_reason_and_the_others_go_on(images, store):
    good = three(images)
    (bad, *_), (wrong, *_) = three(images, "CORAL(weight=1e300)"), three(images, model="no-such-network")
    ended = alone([bad, wrong, *good], store, EXECUTION)
    assert [ended[run.id].status for run in (bad, wrong, *good)] == ["failed", "failed"] + ["finished"] * 3
    assert "not finite" in ended[bad.id].reason
    assert "no-such-network" in ended[wrong.id].reason
    assert store.status(bad).status == store.status(wrong).status == "failed"
    assert alone([bad], store, EXECUTION)[bad.id].reason == ended[bad.id].reason  # the same bits, so not tried again


def failing(monkeypatch, times):
    """Training on dusk fails so many times; the list grows with every training."""
    calls = []

    def broken(settings, *arguments, **more):
        calls.append(settings["targets"])
        if settings["targets"] == ("dusk",) and calls.count(("dusk",)) <= times:
            raise ZeroDivisionError("of the user's own")
        return trained(settings, *arguments, **more)

    trained = attempt.train
    monkeypatch.setattr(attempt, "train", broken)
    return calls


def test_what_fails_is_tried_again_after_the_others(images, store, monkeypatch):
    runs, calls, told = three(images), failing(monkeypatch, 2), []
    ended = alone(runs, store, EXECUTION, on_run=lambda run, s, _: told.append((*run.targets, s.status, s.attempts)))
    assert calls == [("dawn",), ("dusk",), ("noon",), ("dusk",), ("dusk",)]
    assert told[1] == ("dusk", "failed", 1)
    assert told[3:] == [("dusk", "failed", 2), ("dusk", "finished", 0)]
    assert [ended[run.id].status for run in runs] == ["finished"] * 3
    assert not list((store.path / "failures").iterdir())


def test_attempts_are_counted_over_all_sweeps_until_they_are_given_again(images, store, monkeypatch):
    runs, calls = three(images), failing(monkeypatch, 5)
    ended = alone(runs, store, EXECUTION)
    assert [ended[run.id].status for run in runs] == ["finished", "failed", "finished"]
    assert ended[runs[1].id].reason == "ZeroDivisionError: of the user's own"
    assert ended[runs[1].id].attempts == 3
    failure = json.loads((store.path / "failures" / f"{runs[1].id}.json").read_text())
    assert failure["attempts"] == 3
    assert "in broken" in "".join(failure["traceback"])
    assert alone(runs, store, EXECUTION)[runs[1].id].attempts == 3
    assert calls.count(("dusk",)) == 3  # nobody tried
    store.retry(runs[1])
    assert alone(runs, store, EXECUTION)[runs[1].id].status == "finished"
    assert calls.count(("dusk",)) == 6
    assert calls.count(("dawn",)) == 1


def test_who_came_further_before_it_failed_has_all_attempts_again(images, store, monkeypatch):
    run, reached = three(images)[0], iter([0, 0, 4, 4, 9, 9, 9])

    def broken(settings, execution, out, **_):
        place = out / "checkpoints"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"step-{next(reached):08d}-x.safetensors").touch()
        raise ZeroDivisionError("again")

    monkeypatch.setattr(attempt, "train", broken)
    told = []
    alone([run], store, EXECUTION, on_run=lambda run, status, _: told.append(status.attempts))
    assert told == [1, 2, 1, 2, 1, 2, 3]


def test_a_cancelled_run_is_left_until_it_is_wanted_again(images, store):
    runs = three(images)
    store.cancel(runs[1])
    ended = alone(runs, store, EXECUTION)
    assert [ended[run.id].status for run in runs] == ["finished", "cancelled", "finished"]
    assert not store.folder(runs[1]).path.exists()
    store.retry(runs[1])
    assert alone(runs, store, EXECUTION)[runs[1].id].status == "finished"


def test_a_run_is_cancelled_in_the_middle_of_it(images, store):
    (run, *_), others = three(images, steps=30, evaluate_every=1), store.leases()
    calls = iter(range(1000))

    def pause():
        if next(calls) == 20:
            store.cancel(run)
            assert others.revoke(run.id)

    ended = alone([run], store, EXECUTION, pause=pause)
    assert ended[run.id].status == "cancelled"
    assert len(list(store.folder(run).records)) < 30
    store.retry(run)
    assert alone([run], store, EXECUTION)[run.id].status == "finished"
    others.close()


def test_a_worker_that_hangs_after_its_run_was_taken_away_is_ended_after_a_lease(images, store):
    (run, *_), clock = three(images), Clock()
    with RunQueue([run], store) as queue:
        queue.leases.now = clock
        leased, others = queue.claim(), store.leases()
        assert queue.stalled() == []
        store.cancel(run)
        assert others.revoke(run.id)
        assert queue.stalled() == []
        for _ in range(9):
            clock.time += queue.leases.duration / 10
            assert queue.stalled() == []  # it may still notice
        clock.time += queue.leases.duration / 10
        assert queue.stalled() == [leased]
        queue.worker_died(leased, "it made no progress")
        assert queue.ended[run.id].status == "cancelled"
        assert queue.done
        assert queue.stalled() == []
        others.close()


def test_a_death_is_no_failure_of_a_run_that_another_has_by_now(images, store):
    run = three(images)[0]
    with RunQueue([run], store) as queue:
        leased, others = queue.claim(), store.leases()
        others.revoke(run.id)
        theirs = others.acquire([run.id])
        queue.worker_died(leased, "it was killed")
        assert store.status(run).status == "not started"
        assert not queue.done
        assert queue.claim() is None
        others.release(theirs)
        assert queue.claim().run == run
        others.close()


def test_a_full_disk_ends_the_sweep(images, store, monkeypatch):
    def full(*_, **__):
        raise CantWrite("no space")

    monkeypatch.setattr(attempt, "train", full)
    with pytest.raises(CantWrite):
        alone(three(images), store, EXECUTION)
    assert store.leases().list_all() == []
    assert not list((store.path / "failures").iterdir())


def test_a_lost_reader_of_images_or_hub_is_that_runs_failure_alone(images, store, monkeypatch):
    def lost(*_, **__):
        raise ResourceError("a process that reads images ended")

    monkeypatch.setattr(attempt, "train", lost)
    ended = alone(three(images), store, EXECUTION, attempts=1)
    assert {(each.status, each.reason) for each in ended.values()} == {("failed", "a process that reads images ended")}


def test_what_a_kill_after_the_last_file_left_is_tidied(images, store):
    run = three(images)[0]
    alone([run], store, EXECUTION)
    left = store.folder(run) / "checkpoints"
    left.mkdir()
    (left / "step-00000002-x.safetensors").touch()
    (store.path / "failures" / f"{run.id}.json").write_text('{"reason": "killed", "attempts": 1, "reached": 0}')
    assert alone([run], store, EXECUTION)[run.id].status == "finished"
    assert not left.exists()
    assert not list((store.path / "failures").iterdir())


def test_no_run_counts_as_stalled_right_after_the_sweep_itself_slept(images, store):
    """As on Ctrl-Z and `fg`: all leases are over, and no worker has had the time to renew its own."""
    clock = Clock()
    with RunQueue(three(images), store) as queue:
        queue.leases.now, queue.leases.duration = clock, 100.0
        clock.time = 1000.0
        queue.stalled()
        leased = queue.claim()
        for _ in range(9):
            clock.time += 10
            assert queue.stalled() == []
        clock.time += 500
        assert queue.stalled() == []
        clock.time += 20
        assert queue.stalled() == []
        clock.time += 10
        assert queue.stalled() == [leased]


def test_what_another_holds_is_left_until_it_is_free(images, store, monkeypatch):
    runs = three(images)
    other = store.leases()
    lease = other.acquire([runs[0].id])
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        other.release(lease)

    monkeypatch.setattr(time, "sleep", sleep)
    seen = []
    alone(runs, store, EXECUTION, on_run=lambda run, *_: seen.append(run))
    assert seen == [runs[1], runs[2], runs[0]]
    assert slept == [POLL]


def test_a_folder_in_use_is_waited_for(images, store, monkeypatch):
    """Its holder slept past its lease, and still has the folder."""
    runs, slept, sleeper = three(images), [], ExitStack()
    sleeper.enter_context(store.folder(runs[0]).locked())

    def sleep(seconds):
        assert store.leases().list_all() == []
        slept.append(seconds)
        sleeper.close()

    monkeypatch.setattr(time, "sleep", sleep)
    seen = []
    alone(runs, store, EXECUTION, on_run=lambda run, *_: seen.append(run))
    assert seen == [runs[1], runs[2], runs[0]]
    assert slept == [POLL]


def test_a_stopped_sweep_goes_on_where_it_was(images, store):
    runs, calls = three(images, steps=6), iter(range(1000))

    def pause():
        if next(calls) == 12:
            raise Preempted("stopped by the test")

    with pytest.raises(Preempted):
        alone(runs, store, EXECUTION, pause=pause)
    assert {store.status(run).status for run in runs} > {"not started"}
    assert store.leases().list_all() == []
    alone(runs, store, EXECUTION)
    assert {store.status(run).status for run in runs} == {"finished"}


class Clock:
    time = 0.0

    def __call__(self):
        return self.time


def test_the_heartbeat_renews_the_lease_with_progress_and_ends_a_training_that_lost_it(tmp_path):
    clock = Clock()
    leases, other = (Leases(tmp_path / "claims.db", duration=RENEWALS, now=clock) for _ in range(2))
    heartbeat = Heartbeat(leases, leases.acquire(["a"]))
    for t in range(60):  # the time of three leases
        clock.time += 1
        heartbeat.on_progress()
        heartbeat.on_step_end(t, {})
        assert other.acquire(["a"]) is None
    heartbeat.on_progress()
    assert other.list_all()[0].step in (59, 60)
    clock.time += RENEWALS
    assert other.acquire(["a"]).token == 2
    with pytest.raises(LeaseLost):
        heartbeat.on_progress()
    leases.close()
    other.close()


def test_the_database_is_asked_no_more_often_than_the_lease_needs(tmp_path, monkeypatch):
    clock, renewed = Clock(), []
    leases = Leases(tmp_path / "claims.db", duration=RENEWALS, now=clock)
    monkeypatch.setattr(leases, "renew", lambda *values: renewed.append(values))
    heartbeat = Heartbeat(leases, leases.acquire(["a"]))
    for _ in range(1000):
        clock.time += 0.01
        heartbeat.on_progress()
    assert 9 <= len(renewed) <= 10
    leases.close()


def test_measuring_c_is_progress(images, store, monkeypatch):
    """It takes longer than a lease where images are many, and no step ends meanwhile."""
    progress, on_progress = [], Heartbeat.on_progress

    def seen(heartbeat):
        progress.append(heartbeat.step)
        on_progress(heartbeat)

    monkeypatch.setattr(Heartbeat, "on_progress", seen)
    spec = "DSPReg(measure_batches=2, refresh_steps=3)"
    alone(three(images, spec, steps=6, evaluate_every=100)[:1], store, EXECUTION)
    counts = [progress.count(t) for t in range(6)]
    assert counts[3] > counts[2] + 2  # two domains are measured before step 3


def test_a_long_measurement_is_alive_and_a_step_that_hangs_is_not(images, store, monkeypatch):
    """By the clock of the leases, which only the network moves here: twenty seconds a pass, a minute a lease."""
    (run, *_), clock, passes, stalled = three(images, SLOW, steps=2), Clock(), [], []

    class Watching(Heartbeat):
        def beat(self, step):
            passes.append(step)
            clock.time += 20
            super().beat(step)
            stalled.extend(queue.stalled())

    monkeypatch.setattr(attempt, "Heartbeat", Watching)
    with RunQueue([run], store) as queue:
        queue.leases.now, queue.leases.duration = clock, 60.0
        leased = queue.claim()
        outcome = attempt.attempt(leased, store, queue.leases, EXECUTION, attempts=1, pause=lambda: None)
        assert outcome.state.status is RunStatus.FINISHED
        assert passes.count(1) * 20 > 2 * 60  # two leases within the step that measures c
        assert stalled == []
        for _ in range(6):
            assert queue.stalled() == []
            clock.time += 10  # and now without a pass
        assert queue.stalled() == [leased]


SLOW = "DSPReg(measure_batches=2, refresh_steps=1, estimator='loop')"


PROGRAM = """
import sys
from dspreg.runs import leases
leases.Leases.__init__.__kwdefaults__["duration"] = float(sys.argv[4])
from helpers.small_runs import EXECUTION
from helpers.sweeps import alone, three
from dspreg.runs.store import RunStore
store = RunStore(sys.argv[2])
print("ready", flush=True)
alone(three(sys.argv[1], steps=int(sys.argv[3]), evaluate_every=10), store, EXECUTION,
      on_run=lambda run, status, already: print(run.id, status.status, already, flush=True))
"""


def started(images, store, steps, lease=600):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, str(images), str(store.path), str(steps), str(lease)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_killed_sweep_goes_on_at_once_and_ends_as_if_nothing_had_been(images, store, tmp_path):
    runs = three(images, steps=60, evaluate_every=10)
    with started(images, store, 60) as process:
        begun(store)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert any(store.status(run).status == RunStatus.STOPPED for run in runs)
    began = time.monotonic()
    ended = alone(runs, store, EXECUTION)
    assert time.monotonic() - began < 60  # a lease is ten minutes
    other = RunStore(tmp_path / "undisturbed")
    other.make()
    undisturbed = alone(runs, other, EXECUTION)
    assert_same_bits(runs, ended, undisturbed)


def test_two_sweepers_share_the_work(images, store):
    processes = [started(images, store, 40) for _ in range(2)]
    said = [process.communicate(timeout=300)[0].splitlines()[1:] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    runs = {run.id for run in three(images, steps=40, evaluate_every=10)}
    assert [{line.split()[0] for line in lines} for lines in said] == [runs, runs]  # both see all of it finished
    assert {line.split()[1] for lines in said for line in lines} == {"finished"}
    trained = sorted(line.split()[0] for lines in said for line in lines if line.endswith("False"))
    assert trained == sorted(runs)  # and each is trained once


def begun(store):
    """Waits until a run has its first checkpoint."""
    until = time.monotonic() + 120
    while not list(store.path.glob("runs/*/checkpoints/*.safetensors")):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_sweeper_that_slept_past_its_lease_writes_nothing(images, store, monkeypatch):
    runs = three(images, steps=150, evaluate_every=10)
    monkeypatch.setitem(Leases.__init__.__kwdefaults__, "duration", 1.0)
    with started(images, store, 150, lease=1.0) as sleeper, ExitStack() as at_the_end:
        at_the_end.callback(sleeper.kill)  # stopped, it would be waited for for ever
        begun(store)
        sleeper.send_signal(signal.SIGSTOP)
        (info,) = store.leases().list_all()
        assert store.status(next(r for r in runs if r.id == info.run)).status == "stopped"
        ended = alone(runs, store, EXECUTION)
        assert {each.status for each in ended.values()} == {"finished"}
        before = bytes_in(store)
        sleeper.send_signal(signal.SIGCONT)
        said = sleeper.communicate(timeout=300)[0].splitlines()[1:]
    assert sleeper.returncode == 0
    assert sorted(line.split()[0] for line in said) == sorted(run.id for run in runs)
    assert {line.partition(" ")[2] for line in said} == {"finished True"}  # it trained none of them
    assert bytes_in(store) == before
    assert not list(store.path.rglob("*.part"))
