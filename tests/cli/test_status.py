"""`dspreg status`: what the files say, and nothing is written."""

import json
import os
import pty
import random
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from dspreg.cli import main
from dspreg.cli.status_text import status_text
from dspreg.protocol.status_json import status_json
from dspreg.runs.leases import Leases
from dspreg.runs.process_id import machine_and_pid, this_process
from dspreg.runs.status import scan_store
from dspreg.runs.store import RunStore
from helpers.runs import seal
from helpers.stores import PACS, STEPS, diverge, fail, files, finish, planned, put, start


@pytest.fixture
def made(tmp_path):
    return planned(tmp_path / "store")


def look(store, *more):
    return main(["status", str(store.path), *more])


def cells(text, *begin):
    rows = [re.split(r" {2,}", line) for line in text.splitlines()]
    return next(row for row in rows if row[: len(begin)] == [*begin])


def below(text, heading):
    return text.partition(f"\n{heading}\n")[2].split("\n\n")[0].splitlines()


def test_one_run_of_each_kind(made, capsys):
    store, runs = made
    for run, state in zip(
        runs, ("finished", "new", "started", "failed 3", "failed 1", "diverged", "cancelled", "started"), strict=True
    ):
        put(store, run, state)
    leases = store.leases()
    lease = leases.acquire([runs[7].id])
    leases.renew(lease, 1, 10)
    assert look(store) == 0
    said = capsys.readouterr().out
    leases.close()
    assert cells(said, "data set")[2:] == ["runs", "finished", "running", "waiting", "failed", "cancelled"]
    assert cells(said, "PACS", "ERM")[2:] == ["4", "1", "0", "2", "1", "0"]
    assert cells(said, "PACS", "CORAL")[2:] == ["4", "0", "1", "1", "1", "1"]
    assert cells(said, "all")[1:] == ["8", "1", "1", "3", "2", "1"]
    assert "sweep and report verify the files, status does not" in said
    running, note = below(said, "being trained:")
    machine, number = os.uname().nodename, os.getpid()
    step = rf"10 of {STEPS}  ███░░░░░░░░░  progress \d s ago"
    assert re.fullmatch(rf"{runs[7].id}  {step}  {machine}, process {number}  {runs[7]}", running)
    assert "last heartbeat" in note
    assert below(said, "failed:") == [
        f"{runs[3].id}  {runs[3]}: attempt 3 of 3: no images",
        f"{runs[5].id}  {runs[5]}: the loss is not finite",
        f"{runs[4].id}  {runs[4]}: attempt 1 of 3: no images; to be tried again",
    ]


def test_the_same_for_programs(made, capsys):
    store, runs = made
    states = ("finished", "new", "failed 3", "failed 2", "diverged", "cancelled", "started", "started")
    for run, state in zip(runs, states, strict=True):
        put(store, run, state)
    leases = store.leases()
    leases.renew(leases.acquire([runs[7].id]), 1, 5)
    assert look(store, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    leases.close()
    assert said["all"] == {"runs": 8, "finished": 1, "running": 1, "waiting": 3, "failed": 2, "cancelled": 1}
    assert [(group["dataset"], group["algorithm"], group["runs"]) for group in said["groups"]] == [
        ("PACS", "ERM", 4),
        ("PACS", "CORAL", 4),
    ]
    assert [run["state"] for run in said["runs"]] == [
        "finished", "waiting", "failed", "waiting", "failed", "cancelled", "waiting", "running",
    ]  # fmt: skip
    assert [(run["id"], run["algorithm"], run["targets"]) for run in said["runs"]] == [
        (run.id, run.algorithm, list(run.targets)) for run in runs
    ]
    (trained,) = said["being trained"]
    assert 0 < trained.pop("seconds")["lease ends in"] <= 600
    assert trained == {
        "id": runs[7].id, "alive": True, "step": 5, "steps": STEPS, "machine": os.uname().nodename,
        "process": os.getpid(),
    }  # fmt: skip
    assert [(failed["id"], failed["attempts"], failed["state"]) for failed in said["failed"]] == [
        (runs[2].id, 3, "failed"),
        (runs[3].id, 2, "waiting"),
        (runs[4].id, 0, "failed"),
    ]


KINDS = ("new", "started", "finished", "diverged", "cancelled", "failed 1", "failed 2", "failed 3", "failed 4")


@pytest.mark.parametrize("seed", range(5))
def test_it_says_what_a_look_at_every_run_says(tmp_path, seed):
    """Against `RunStore.status`, which verifies every file."""
    r = random.Random(seed)
    store, runs = planned(tmp_path / "store", ["ERM", "CORAL", "SAM", "VREx", "IRM"])
    leases, trained = store.leases(), set()
    for run in runs:
        put(store, run, r.choice(KINDS))
        if r.random() < 0.3:
            leases.acquire([run.id])
            trained.add(run)
    found = scan_store(store, attempts=3)
    assert list(found.states) == [run.id for run in runs]
    for run in runs:
        verified, scanned = store.status(run), found.states[run.id]
        open_to_attempts = verified.status in ("not started", "stopped") or verified.attempts > 0
        running = run in trained and open_to_attempts
        assert scanned.status == ("running" if running else verified.status)
        assert (scanned.reason, scanned.attempts) == (verified.reason, verified.attempts)
        again = open_to_attempts and verified.attempts < 3
        assert found.summaries[run.id] == ("running" if running else "waiting" if again else verified.status)
        assert (run.id in found.failures) == (verified.status == "failed")
    assert sum(found.summaries[run.id] in ("running", "waiting") for run in trained) == len(found.leases)
    leases.close()


def test_exit_codes(made, capsys, tmp_path):
    store, runs = made
    assert look(store) == 0  # nothing is done
    for run in runs[:-1]:
        finish(store, run)
    fail(store, runs[-1], 2)
    assert look(store, "--json") == 0  # to be tried again
    assert look(store, "--attempts", "2") == 5
    fail(store, runs[-1], 1)
    assert look(store, "--json") == look(store) == 5
    leases = store.leases()
    leases.acquire([runs[-1].id])
    assert look(store) == 0  # by a sweep with --attempts 4
    leases.close()
    store.succeed(runs[-1])
    finish(store, runs[-1])
    assert look(store) == 0
    capsys.readouterr()
    assert main(["status", str(tmp_path)]) == 2
    assert "is no store of runs" in capsys.readouterr().err
    assert main(["status", str(tmp_path / "gone")]) == 2
    (store.path / "store.json").write_text('{"format": "dspreg.store/9"}')
    assert look(store) == 4


def test_nothing_is_cancelled_by_being_only_cancelled(made):
    store, runs = made
    for run in runs:
        store.cancel(run)
    assert look(store) == 0


def test_whoever_holds_a_run_may_be_gone_or_hang(made, capsys):
    store, runs = made
    for run in runs[:3]:
        start(store, run)
    dead = subprocess.run(
        [sys.executable, "-c", "from dspreg.runs.process_id import this_process; print(this_process())"],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.strip()  # fmt: skip
    late = Leases(store.path / "claims.db", now=lambda: time.monotonic() - 601)
    late.acquire([runs[0].id])
    gone = store.leases()
    gone.holder = f"0 {dead}"
    gone.acquire([runs[1].id])
    before = Leases(store.path / "claims.db", boot="another")
    before.acquire([runs[2].id])
    assert look(store) == 0
    said = capsys.readouterr().out
    for each in (late, gone, before):
        each.close()
    assert cells(said, "all")[1:4] == ["8", "0", "0"]  # nobody works on any of them
    lines = below(said, "being trained:")
    assert "no progress, its lease has expired" in lines[0]
    assert re.search(rf"its process died +{machine_and_pid(dead)[0]}, process {machine_and_pid(dead)[1]} ", lines[1])
    assert "no progress, its lease has expired" in lines[2]


def test_a_lease_of_a_finished_run_is_not_told(made, capsys):
    store, runs = made
    finish(store, runs[0])
    store.cancel(runs[1])
    leases = store.leases()
    assert [leases.acquire([run.id]).run for run in runs[:2]]
    look(store)
    said = capsys.readouterr().out
    leases.close()
    assert cells(said, "all")[1:] == ["8", "1", "0", "6", "0", "1"]
    assert "being trained" not in said


def test_only_the_first_twenty_failures(tmp_path, capsys):
    store, runs = planned(tmp_path / "store", ["ERM", "CORAL", "SAM", "VREx", "IRM", "MMD"])
    for run in runs:
        fail(store, run)
    assert look(store) == 5
    lines = below(capsys.readouterr().out, "failed:")
    assert [line.split()[0] for line in lines] == [*(run.id for run in runs[:20]), "and"]
    assert lines[-1] == "and 4 more"


def test_names_and_reasons_can_do_no_harm(tmp_path, capsys):
    store, runs = planned(tmp_path / "store", ["ERM"], {"index:\x1b[31mred.csv": ("a", "b\u202e", "c")})
    fail(store, runs[1], reason="\x1b]0;title\x07 [bold]gone")
    leases = store.leases()
    leases.holder = "0 \x1b[2J"
    leases.acquire([runs[0].id])
    assert look(store) == 0
    said = capsys.readouterr().out
    leases.close()
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert r"\x1b[31mred" in said
    assert r"\x1b]0;title\x07 [bold]gone" in said
    assert r"\x1b[2J" in said
    assert look(store, "--json") == 0
    assert capsys.readouterr().out.isascii()


def test_plans_of_the_first_version_are_read(made, capsys):
    store, runs = made
    (path,) = store.plans()
    value = json.loads(path.read_text())
    assert value["ids"] == [run.id for run in runs]
    finish(store, runs[5])
    assert look(store, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    path.write_text(json.dumps({name: each for name, each in value.items() if name != "ids"}))
    assert look(store, "--json") == 0
    assert json.loads(capsys.readouterr().out) == first
    assert store.planned_runs() == runs


@pytest.mark.parametrize("ids", [[], "0" * 8, list(range(8)), {}])
def test_a_damaged_plan_is_named(made, capsys, ids):
    (path,) = made[0].plans()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ids": ids}))
    assert look(made[0]) == 4
    assert str(path) in capsys.readouterr().err


def test_ids_are_no_paths(made, capsys):
    store, runs = made
    finish(store, runs[0]).path.rename(store.path / "elsewhere")
    (path,) = store.plans()
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"ids": ["../elsewhere", *value["ids"][1:]]}))
    assert look(store) == 4
    assert f"{path} is damaged: its ids and runs are not as they are written" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"attempts": 1}', '{"reason": 3, "attempts": "x"}'])
def test_a_damaged_failure_hides_no_other_run(made, capsys, text):
    store, runs = made
    (store.path / "failures" / f"{runs[0].id}.json").write_text(text)
    finish(store, runs[1])
    assert look(store) == 0
    said = capsys.readouterr().out
    assert cells(said, "all")[1:] == ["8", "1", "0", "6", "1", "0"]
    assert f"{runs[0].id}.json can't be read" in said


def test_a_store_that_was_just_made(tmp_path, capsys):
    RunStore(tmp_path / "store").make()
    assert main(["status", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == "nothing is planned here yet\n"


def test_a_screen_that_is_too_small_shows_some_of_each(tmp_path):
    store, runs = planned(tmp_path / "store", ["ERM", "CORAL", "SAM", "VREx", "IRM", "MMD", "RSC", "Fish", "Fishr"])
    for run in runs[:15]:
        fail(store, run)
    leases = store.leases()
    for run in runs[15:]:
        leases.acquire([run.id])
    found = scan_store(store, 3)
    leases.close()
    whole = status_text(found).splitlines()
    for height, cut in {18: 3, 24: 3, 30: 3, 50: 2, 200: 0}.items():
        lines = status_text(found, height).splitlines()
        assert len(lines) <= height
        assert cells("\n".join(lines), "all")[1] == "36"
        for part in ("being trained:", "failed:"):
            assert lines[lines.index(part) + 1].split()[0] in {run.id for run in runs}
        assert sum(line.startswith("and ") for line in lines) == cut
    assert lines == whole


# Whoever looks changes nothing.


def test_nothing_is_written(made, capsys):
    store, runs = made
    for run, state in zip(runs, ("finished", "started", "failed 3", "cancelled") * 2, strict=True):
        put(store, run, state)
    before = files(store.path)
    assert look(store) == 0
    assert files(store.path) == before
    assert not (store.path / "claims.db").exists()
    leases = store.leases()
    leases.acquire([runs[1].id])
    before = files(store.path)
    assert look(store) == 0  # beside a sweeper
    assert cells(capsys.readouterr().out.split("cancelled\n")[-1], "all")[3] == "1"
    assert files(store.path) == before
    leases.close()
    before = files(store.path)
    assert not (store.path / "claims.db-shm").exists()
    assert look(store) == 0
    assert cells(capsys.readouterr().out, "all")[3] == "1"
    assert files(store.path) == before


CLAIMED_BY_A_KILLED_PROCESS = """
import os, sys
from dspreg.runs.leases import Leases
leases = Leases(sys.argv[1])
leases.acquire([sys.argv[2]])
os._exit(0)
"""
AS_ANOTHER_USER = """
import contextlib, io, os, sys
from dspreg.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["status", sys.argv[1]])  # the other user may not be able to import anything
if os.getuid() == 0:
    os.setuid(65534)
assert not os.access(sys.argv[1], os.W_OK)
print("exit code", main(["status", sys.argv[1]]))
"""


@pytest.mark.parametrize("sweeper", ["running", "killed", "gone", "none"])
def test_a_store_that_may_only_be_read(sweeper):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:  # others can't look into tmp_path
        os.chmod(folder, 0o755)
        store, runs = planned(Path(folder) / "store")
        start(store, runs[0])
        leases = store.leases() if sweeper in ("running", "gone") else None
        if leases:
            leases.acquire([runs[0].id])
        if sweeper == "gone":
            leases.close()
        if sweeper == "killed":
            program = [sys.executable, "-c", CLAIMED_BY_A_KILLED_PROCESS, store.path / "claims.db", runs[0].id]
            subprocess.run(program, check=True, env=environment)
        for path in (store.path, *store.path.rglob("*")):
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        try:
            program = [sys.executable, "-c", AS_ANOTHER_USER, str(store.path)]
            said = subprocess.run(program, env=environment, capture_output=True, text=True)
        finally:
            for path in (store.path, *store.path.rglob("*")):
                path.chmod(path.stat().st_mode | stat.S_IWUSR)
    assert said.stdout.endswith("exit code 0\n"), said
    assert cells(said.stdout, "all")[1:4] == ["8", "0", "1" if sweeper in ("running", "gone") else "0"]
    assert (runs[0].id in said.stdout) == (sweeper != "none")
    assert ("its process died" in said.stdout) == (sweeper == "killed")


def test_it_needs_no_torch(made):
    program = (
        "import sys\nfrom dspreg.cli import main\nmain(['status', sys.argv[1]])\nmain(['retry', sys.argv[1]])\n"
        "main(['cancel', sys.argv[1], '--all'])\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(made[0].path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


# On a terminal.


class Terminal:
    """`dspreg status` on a terminal of its own, and what it has written so far."""

    def __init__(self, store):
        self.ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [sys.executable, "-m", "dspreg.cli", "status", str(store.path)]
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # whatever runs the tests may ignore it
        self.process = subprocess.Popen(
            command, stdout=theirs, stdin=theirs, stderr=theirs, env=environment, preexec_fn=heard
        )
        os.close(theirs)
        self.text = ""

    def wait_for(self, pattern, seconds=120):
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < until, self.text
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += os.read(self.ours, 65536).decode()

    def ended(self):
        """Its exit code, and all that it wrote."""
        code, until = None, time.monotonic() + 120
        try:
            while True:
                assert time.monotonic() < until, self.text
                if select.select([self.ours], [], [], 0.2)[0]:
                    self.text += os.read(self.ours, 65536).decode()
                elif code is not None:
                    break
                code = self.process.poll()
        except OSError:  # nobody has the other end any more
            code = self.process.wait(120)
        os.close(self.ours)
        return code


def test_it_goes_on_until_all_is_settled(tmp_path):
    store, runs = planned(tmp_path / "store", ["ERM"])
    for run in runs[:2]:
        finish(store, run)
    leases = store.leases()
    lease = leases.acquire([runs[2].id])
    diverge(store, runs[3])
    terminal = Terminal(store)
    terminal.wait_for(r"all +4 +2 +1 +0 +1 +0")
    terminal.wait_for("starting")
    start(store, runs[2])
    leases.renew(lease, 1, 30)
    terminal.wait_for(rf"30 of {STEPS}  █████████░░░")
    store.folder(runs[2]).records.append({"step": STEPS - 1})
    seal(store.folder(runs[2]), {})
    leases.close()
    assert terminal.ended() == 5
    assert re.search(r"all +4 +3 +0 +0 +1 +0", terminal.text)


def test_ctrl_c_leaves_it(made):
    terminal = Terminal(made[0])
    terminal.wait_for(r"all +8 +0")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.text


def test_processes_are_told_by_machine_and_number():
    assert machine_and_pid(this_process()) == (os.uname().nodename, os.getpid())
    assert machine_and_pid("machine 12 345") == ("machine", 12)
    assert machine_and_pid("machine pid:[4026531836] 12 345") == ("machine", 12)
    assert machine_and_pid("") == ("", None)
    assert machine_and_pid("no such name") == ("no such name", None)


def test_data_sets_are_those_of_the_runs(tmp_path):
    """Plans are read without being understood; the names are the same all the same."""
    domains = {"folder:/a/photos": PACS["PACS"], "index:b/list.csv": PACS["PACS"], "my.Data": PACS["PACS"]}
    store, runs = planned(tmp_path / "store", ["CORAL( weight=1.0 )+DSPReg"], domains)
    said = status_json(scan_store(store, 3))
    assert {(each["dataset"], each["algorithm"]) for each in said["groups"]} == {
        (run.data_name, run.algorithm) for run in runs
    }
    assert len(said["groups"]) == 3
