"""`dspreg cancel`: unfinished runs are left alone by all sweeps, finished ones stay, and retry takes it back."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from dspreg.cli import main
from dspreg.errors import DataError
from dspreg.runs.leases import LeaseLost
from dspreg.runs.store import RunStore
from helpers.small_runs import photos
from helpers.stores import files, finish, planned, put, start


@pytest.fixture
def made(tmp_path):
    return planned(tmp_path / "store")


def states(store, runs):
    return [store.status(run).status for run in runs]


def test_all_that_are_not_finished(made, capsys):
    store, runs = made
    kinds = ("finished", "failed 3", "failed 1", "cancelled", "diverged", "started", "new", "started")
    for run, kind in zip(runs, kinds, strict=True):
        put(store, run, kind)
    untouched = {p: v for p, v in files(store.path).items() if runs[0].id in str(p) or runs[4].id in str(p)}
    leases = store.leases()
    lease = leases.acquire([runs[7].id])
    assert main(["cancel", str(store.path), "--all"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:-1]] == [runs[n].id for n in (1, 2, 5, 6, 7)]
    assert said[-2] == f"{runs[7].id}  {runs[7]}: cancelled, while it was being trained"
    assert said[-1].startswith("5 cancelled; 1 of them was being trained, and stops within half a minute. ")
    assert states(store, runs) == ["finished", *["cancelled"] * 3, "failed", *["cancelled"] * 3]
    assert {p: v for p, v in files(store.path).items() if p in untouched} == untouched
    assert "(it had failed: no images)" in store.status(runs[1]).reason
    assert (store.folder(runs[5]) / "run.json").exists()  # what there is so far is kept
    assert leases.list_all() == []
    with pytest.raises(LeaseLost):
        leases.renew(lease, 1)
    leases.close()
    assert main(["cancel", str(store.path), "--all"]) == 0
    assert capsys.readouterr().out.startswith("0 cancelled.")
    assert main(["retry", str(store.path)]) == 0
    assert states(store, runs) == [
        "finished",
        "not started",
        "not started",
        "not started",
        "failed",
        "stopped",
        "not started",
        "stopped",
    ]


def test_named_ones_only(made, capsys):
    store, runs = made
    finish(store, runs[0])
    put(store, runs[2], "diverged")
    assert main(["cancel", str(store.path), runs[0].id, runs[1].id[:12], runs[2].id]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{runs[0].id}  {runs[0]}: it is finished, and stays"
    assert said[1] == f"{runs[1].id}  {runs[1]}: cancelled"
    assert "it diverged" in said[2]
    assert states(store, runs) == ["finished", "cancelled", "failed", *["not started"] * 5]


@pytest.mark.parametrize("more", [[], ["a", "--all"]])
def test_nobody_cancels_a_night_of_work_by_a_typo(made, capsys, more):
    store, _ = made
    before = files(store.path)
    assert main(["cancel", str(store.path), *more]) == 2
    assert "Name them, or give --all" in capsys.readouterr().err
    assert files(store.path) == before


def test_whoever_trains_it_can_not_write_over_the_marker(made, monkeypatch):
    """It fails at the very moment: after the marker is written, before the command has ended."""
    store, runs = made
    start(store, runs[0])
    worker = store.leases()
    lease = worker.acquire([runs[0].id])
    worker._connection.execute("PRAGMA busy_timeout = 100")
    refused = []

    def failing(store, run):
        cancel(store, run)
        try:
            store.fail(run, DataError("no images"), fence=lambda: worker.guard(lease))
        except Exception as error:
            refused.append(str(error))

    cancel = RunStore.cancel
    monkeypatch.setattr(RunStore, "cancel", failing)
    assert main(["cancel", str(store.path), runs[0].id]) == 0
    assert len(refused) == 1
    assert "locked" in refused[0]  # it waits, and then has lost its lease
    with pytest.raises(LeaseLost):
        store.fail(runs[0], DataError("no images"), fence=lambda: worker.guard(lease))
    worker.close()
    assert states(store, runs[:1]) == ["cancelled"]


STEPS = 60
SET = ["model=small-cnn", "weights=none", "image_size=28", "batch_size=4", "lr=1e-3", "augment=no"]
SET += [f"steps={STEPS}", "evaluate_every=2"]
HOW = ["--threads", "1", "--profile", "never", "--workers", "0", "--check-images", "never", "--keep", "none"]


SLOW = """
import os, time
from dspreg import Algorithm

class Slow(Algorithm):
    def loss(self, out):
        time.sleep(float(os.environ["SECONDS_A_STEP"]))
        return self.base.loss(out)
"""


def test_a_sweep_in_two_processes_is_cancelled_in_the_middle_and_retried_to_the_end(tmp_path, capsys):
    images, store = photos(tmp_path / "photos"), RunStore(tmp_path / "store")
    (tmp_path / "slow_methods.py").write_text(SLOW)
    what = ["--dataset", f"folder:{images}", "--algorithms", "slow_methods.Slow", "--trials", "1", "--draws", "1"]
    what += [word for text in SET for word in ("--set", text)]
    typed = ["sweep", *what, "--only", "training", *HOW, "--store", str(store.path), "--jobs", "2"]
    program, path = [sys.executable, "-m", "dspreg.cli"], os.pathsep.join([*sys.path, str(tmp_path)])
    environment = os.environ | {"PYTHONPATH": path}
    slowly, fast = (environment | {"SECONDS_A_STEP": seconds} for seconds in ("0.2", "0"))
    with subprocess.Popen([*program, *typed], env=slowly, stdout=subprocess.PIPE, text=True) as sweep:
        try:
            until = time.monotonic() + 300
            while len(list(store.path.glob("runs/*/records.jsonl"))) < 2:
                assert time.monotonic() < until
                assert sweep.poll() is None
                time.sleep(0.1)
            assert main(["status", str(store.path), "--json"]) == 0
            said = json.loads(capsys.readouterr().out)
            assert main(["cancel", str(store.path), "--all"]) == 0
            cancelled = capsys.readouterr().out
            told = sweep.communicate(timeout=300)[0]
        finally:
            sweep.terminate()
    runs = store.planned_runs()
    assert said["all"] == {"runs": 3, "finished": 0, "running": 2, "waiting": 1, "failed": 0, "cancelled": 0}
    assert {each["process"] for each in said["being trained"]} == {sweep.pid}
    assert "3 cancelled; 2 of them were being trained" in cancelled
    assert sweep.returncode == 0
    assert "0 of 3 runs finished" in told
    assert len(re.findall(r"^\[\d/3\] .*: cancelled: dspreg retry", told, re.M)) == 3
    assert states(store, runs) == ["cancelled"] * 3
    begun = [len(list(store.folder(run).records)) for run in runs]
    assert sorted(n > 0 for n in begun) == [False, True, True]
    assert max(begun) <= STEPS // 2  # of 31

    assert main(["status", str(store.path)]) == 0
    assert main(["retry", str(store.path)]) == 0
    said = subprocess.run([*program, *typed], env=fast, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    assert "3 of 3 runs finished" in said.stdout
    assert states(store, runs) == ["finished"] * 3
    steps = [*range(0, STEPS, 2), STEPS - 1]
    assert [[record["step"] for record in store.folder(run).records] for run in runs] == [steps] * 3
    assert not list((store.path / "failures").iterdir())
