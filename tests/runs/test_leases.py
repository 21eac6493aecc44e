"""Leases of runs: never doubled, never lost, and refused to a process that slept too long."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing

import pytest

from dspreg.errors import IntegrityError, ResourceError
from dspreg.runs.leases import HELD_OF, WINDOW, LeaseInfo, LeaseLost, Leases, list_leases
from dspreg.runs.process_id import is_gone, this_process


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def two(tmp_path, clock):
    made = [Leases(tmp_path / "claims.db", duration=10, now=clock) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def test_the_first_that_nobody_holds(two):
    one, other = two
    runs = ["c", "a", "b"]
    assert [one.acquire(runs).run, other.acquire(runs).run, one.acquire(runs).run] == ["c", "a", "b"]
    assert other.acquire(runs) is None
    assert other.acquire([]) is None


def test_more_runs_than_one_statement_looks_at(two):
    one, other = two
    runs = [f"{n:05d}" for n in range(3 * WINDOW)]
    found = [(one, other)[n % 2].acquire(runs).run for n in range(len(runs))]
    assert found == runs
    assert one.acquire(runs) is None


def test_tokens_grow_with_every_lease_of_a_run(two):
    one, other = two
    tokens = []
    for each in (one, other, one, one):
        lease = each.acquire(["a"])
        tokens.append(lease.token)
        each.release(lease)
    assert tokens == [1, 2, 3, 4]
    assert one.acquire(["b"]).token == 1


def test_a_lease_ends_unless_there_is_progress(two, clock):
    one, other = two
    lease = one.acquire(["a"])
    clock.time += 9.9
    assert other.acquire(["a"]) is None
    one.renew(lease, 1)
    clock.time += 9.9
    assert other.acquire(["a"]) is None
    one.renew(lease, 1)  # hangs: it renews and does not move
    clock.time += 0.1
    assert other.acquire(["a"]).token == 2


def test_whoever_slept_too_long_may_do_nothing(two, clock, tmp_path):
    one, other = two
    old = one.acquire(["a"])
    clock.time += 10
    new = other.acquire(["a"])
    with pytest.raises(LeaseLost, match="no longer ours"):
        one.renew(old, 5)
    with pytest.raises(LeaseLost), one.guard(old):
        (tmp_path / "written").touch()
    assert not (tmp_path / "written").exists()
    one.release(old)  # takes nothing away from the new holder
    with other.guard(new):
        (tmp_path / "written").touch()
    assert (tmp_path / "written").exists()
    other.renew(new, 1)
    assert one.acquire(["a"]) is None


def test_expired_but_not_taken_over_goes_on(two, clock):
    one, other = two
    lease = one.acquire(["a"])
    clock.time += 50
    one.renew(lease, 1)
    assert other.acquire(["a"]) is None


def test_released_is_released(two):
    one, other = two
    lease = one.acquire(["a"])
    one.release(lease)
    with pytest.raises(LeaseLost):
        one.renew(lease, 1)
    with pytest.raises(LeaseLost), one.guard(lease):
        pass
    assert other.acquire(["a"]).token == 2


def test_the_leases_of_some_runs_are_found_without_a_look_at_the_others(two, clock, tmp_path):
    one, other = two
    held = [one.acquire([run]) for run in ("a", "b", "c", "d")]
    one.release(held[1])
    other.acquire(["e"])
    clock.time += 11
    wanted = ["d", "b", "e", "never", "a"]
    assert one.list_held(wanted) == [each for each in one.list_all() if each.run in wanted]
    assert [each.run for each in one.list_held(wanted)] == ["a", "d", "e"]
    assert one.list_held([]) == []
    with closing(sqlite3.connect(tmp_path / "claims.db")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {HELD_OF}", {"runs": "[]"}).fetchall()
    said = [row[3] for row in plan]
    assert any(text.startswith("SEARCH claims USING PRIMARY KEY") for text in said), said
    assert not any(text.startswith("SCAN claims") for text in said), said


def test_nobody_takes_over_during_a_write(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("dspreg.runs.leases.PATIENCE", 0.05)
    one, other = (Leases(tmp_path / "claims.db", duration=10, now=clock) for _ in range(2))
    lease = one.acquire(["a"])
    with one.guard(lease):
        clock.time += 11
        with pytest.raises(ResourceError, match="locked"):
            other.acquire(["a"])
    assert other.acquire(["a"]).token == 2
    one.close()
    other.close()


def test_a_lease_of_before_the_machine_was_started_again_is_over(tmp_path, clock):
    """Its clock began anew, so that the old end of the lease might be days away."""
    before = Leases(tmp_path / "claims.db", now=lambda: 1e6, boot="first")
    before.acquire(["a"])
    after = Leases(tmp_path / "claims.db", now=clock, boot="second")
    assert [held.left for held in after.list_all()] == [-1.0]
    assert after.acquire(["a"]).token == 2
    before.close()
    after.close()


def test_what_others_see(two, clock):
    one, other = two
    lease = one.acquire(["a", "b"])
    one.renew(lease, 40, 17)
    clock.time += 4
    (held,) = other.list_all()
    assert (held.run, held.holder, held.step, held.left) == ("a", one.holder, 17, 6)
    one.release(lease)
    assert other.list_all() == []


OLD = """
CREATE TABLE claims (
    run TEXT PRIMARY KEY, token INTEGER NOT NULL, holder TEXT, boot TEXT NOT NULL, expires REAL NOT NULL,
    progress INTEGER NOT NULL, step INTEGER NOT NULL
) WITHOUT ROWID
"""


def test_the_database_is_that_of_earlier_versions(tmp_path, clock):
    """One that runs beside this one has the same file open."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.execute(OLD)
        old.execute("INSERT INTO claims VALUES ('a', 4, NULL, 'b', 0, 0, 0), ('b', 1, 'x y', 'b', 2000, 3, 17)")
        old.commit()
        columns = old.execute("PRAGMA table_info(claims)").fetchall()
        ours = Leases(tmp_path / "old.db", duration=10, now=clock, boot="b")
        assert [(each.run, each.step, each.left) for each in ours.list_all()] == [("b", 17, 1000.0)]
        assert ours.acquire(["b", "a"]).token == 5
        assert old.execute("SELECT expires FROM claims WHERE run = 'a'").fetchone() == (1010.0,)
        ours.close()
    Leases(tmp_path / "new.db").close()
    with closing(sqlite3.connect(tmp_path / "new.db")) as new:
        assert new.execute("PRAGMA table_info(claims)").fetchall() == columns
        assert new.execute("PRAGMA user_version").fetchone() == (1,)


def test_what_is_no_database(tmp_path):
    (tmp_path / "claims.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(IntegrityError, match="is damaged"):
        Leases(tmp_path / "claims.db")
    with pytest.raises(ResourceError, match="is the folder writable"):
        Leases(tmp_path / "missing" / "claims.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(IntegrityError, match="format 2"):
        Leases(tmp_path / "newer.db")


def test_a_forked_process_has_a_connection_of_its_own(two):
    one, _ = two
    child = os.fork()
    if child == 0:
        os._exit(0 if one.acquire(["a"]).token == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert one.acquire(["a"]) is None


WORKER = """
import sys
from dspreg.runs.leases import Leases
leases = Leases(sys.argv[1])
left = dict.fromkeys(f"{n:05d}" for n in range(10_000))
while (lease := leases.acquire(left)):
    print(lease.run, lease.token)
    del left[lease.run]
"""


def started(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_who_opens_it_while_another_makes_it_waits(tmp_path):
    """SQLite itself waits everywhere but in a change of its journal."""
    other = sqlite3.connect(tmp_path / "claims.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # as a process does that makes the table
    ends = threading.Timer(0.3, other.rollback)
    ends.start()
    with closing(Leases(tmp_path / "claims.db")) as leases:
        assert leases.acquire(["a"]).token == 1
    ends.join()
    other.close()


def test_two_processes_none_doubled_none_lost(tmp_path):
    """10,000 runs that are never released: the process that acquires one keeps it."""
    processes = [started(WORKER, tmp_path / "claims.db") for _ in range(2)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    found = Counter(line.split()[0] for lines in said for line in lines)
    assert found == Counter({f"{n:05d}": 1 for n in range(10_000)})
    assert {line.split()[1] for lines in said for line in lines} == {"1"}
    assert all(said), "one process did all of it, so nothing was shared"


HOLDER = """
import sys, time
from dspreg.runs.leases import Leases
leases = Leases(sys.argv[1], duration=1.0)
lease = leases.acquire(["a"])
for step in range(1, 10_000):
    leases.renew(lease, step)
    print(step, flush=True)
    time.sleep(0.05)
"""


def test_a_killed_holders_run_is_free_after_its_lease(tmp_path):
    with started(HOLDER, tmp_path / "claims.db") as process:
        assert process.stdout.readline().strip() == "1"
        ours = Leases(tmp_path / "claims.db", duration=1.0)
        until = time.monotonic() + 1.5  # longer than a lease: it is renewing that holds it
        while time.monotonic() < until:
            assert ours.acquire(["a"]) is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert ours.acquire(["a"]) is None
    time.sleep(1.05)
    assert ours.acquire(["a"]).token == 2
    ours.close()


def test_a_stopped_holder_is_refused_when_it_goes_on(tmp_path):
    with started(HOLDER, tmp_path / "claims.db") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        ours = Leases(tmp_path / "claims.db", duration=60.0)
        assert ours.acquire(["a"]).token == 2
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "LeaseLost: the run a is no longer ours" in said
        ours.close()


def test_nobody_waits_for_a_process_that_is_gone(tmp_path):
    ours = Leases(tmp_path / "claims.db")
    mine = ours.acquire(["mine"])
    with started(HOLDER.replace("duration=1.0", "duration=3600.0"), tmp_path / "claims.db") as process:
        process.stdout.readline()
        assert ours.expire_dead() == 0  # it lives
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert ours.acquire(["a"]) is None
    assert ours.expire_dead() == 1
    assert ours.acquire(["a"]).token == 2
    ours.renew(mine, 1)  # ours was not expired
    ours.close()


def test_of_a_process_elsewhere_nothing_is_known():
    place, number, start = this_process().rsplit(" ", 2)
    assert not is_gone(this_process())
    assert is_gone(f"{place} {number} {int(start) - 1}")  # its number is ours by now
    assert is_gone(f"{place} 4194305 1")  # above the largest number there can be
    assert not is_gone(f"other-host {number} 1")
    assert not is_gone("")


# Only looking.


def test_whoever_only_looks_sees_the_same_and_leaves_nothing(tmp_path):
    path = tmp_path / "a folder?mode=x%20#1" / "claims.db"
    assert list_leases(path) == []
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir()
    leases = Leases(path, duration=600, now=lambda: 5.0, boot="b")
    one, two = leases.acquire(["x"]), leases.acquire(["y"])
    leases.renew(one, 1, 17)
    leases.release(two)
    assert list_leases(path, now=lambda: 5.0, boot="b") == leases.list_all()  # while it is open
    assert [(each.run, each.step, each.left) for each in leases.list_all()] == [("x", 17, 600.0)]
    leases.close()
    before = sorted(p.name for p in path.parent.iterdir())
    assert before == ["claims.db"]
    (found,) = list_leases(path, now=lambda: 10.0, boot="b")
    assert (found.run, found.holder, found.step, found.left) == ("x", one.holder, 17, 595.0)
    assert [each.left for each in list_leases(path, boot="another start")] == [-1.0]
    assert sorted(p.name for p in path.parent.iterdir()) == before


def test_a_holder_is_alive_while_its_process_is_and_its_lease_lasts(tmp_path):
    leases = Leases(tmp_path / "claims.db", duration=10, now=lambda: 0.0)
    leases.acquire(["x"])
    assert [each.alive for each in list_leases(tmp_path / "claims.db", now=lambda: 9.0)] == [True]
    assert [each.alive for each in list_leases(tmp_path / "claims.db", now=lambda: 11.0)] == [False]
    leases.close()
    place, number, start = this_process().rsplit(" ", 2)
    assert not LeaseInfo("x", f"ab {place} {number} {int(start) + 1}", 0, 10.0).alive


def test_a_file_that_is_no_database_is_said(tmp_path):
    (tmp_path / "claims.db").write_bytes(b"something else, of more than a hundred bytes" * 9)
    with pytest.raises(IntegrityError, match="stop all sweeps and remove it"):
        list_leases(tmp_path / "claims.db")


def test_what_is_revoked_after_something_is_revoked_only_if_that_was_done(two):
    one, other = two
    lease = one.acquire(["a"])
    with pytest.raises(ZeroDivisionError), other.revoking("a"):
        raise ZeroDivisionError
    one.renew(lease, 1)
    assert other.revoke("a")
    assert not other.revoke("a")
    assert not other.revoke("b")
    with pytest.raises(LeaseLost):
        one.renew(lease, 2)
